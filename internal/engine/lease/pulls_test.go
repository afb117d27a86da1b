package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
)

func TestAPullIsMeasuredInItsParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pulls
		told := 0
		opts := core.PullOptions{Progress: func(core.PullProgress) { told++ }}
		w := p.Watch("cri", "busybox", &opts)
		a, b := digest.FromString("a"), digest.FromString("b")
		for _, step := range []struct {
			after time.Duration
			pr    core.PullProgress
		}{
			{100 * time.Millisecond, core.PullProgress{Status: "resolving"}},
			{100 * time.Millisecond, core.PullProgress{Status: "downloading", Total: 25}},
			{0, core.PullProgress{Blob: a, Status: "downloading", Done: 10, Total: 20}},
			{time.Second, core.PullProgress{Blob: b, Status: "exists", Done: 5, Total: 5}},
			{time.Second, core.PullProgress{Blob: a, Status: "downloading", Done: 20, Total: 20}},
			{time.Second, core.PullProgress{Blob: a, Status: "downloading", Done: 20, Total: 20}},
			{time.Second, core.PullProgress{Blob: a, Status: "done", Done: 20, Total: 20}},
		} {
			<-time.After(step.after)
			opts.Progress(step.pr)
		}
		image := digest.FromString("image")
		w.End(image)
		v := p.Of(image).Verb("pull")
		if v == nil {
			t.Fatal("nothing is known of the pull")
		}
		if want := "[{resolve 200ms} {fetch 2s} {unpack 2s}]"; fmt.Sprint(v.Stages) != want || v.By != "cri" || v.Bytes != 20 {
			t.Errorf("%v, want %s, by cri, of 20 bytes", v, want)
		}
		if told != 7 {
			t.Errorf("the caller was told %d of 7 steps", told)
		}
	})
}

func TestOnlyTheNewestPullsAreKept(t *testing.T) {
	var p Pulls
	image := func(i int) digest.Digest { return digest.FromString(fmt.Sprint(i)) }
	for i := range keptPulls + 10 {
		p.Watch("cli", "a", &core.PullOptions{}).End(image(i))
		p.Watch("nomad", "a", &core.PullOptions{}).End(image(i))
	}
	if p.Of(image(9)) != "" || p.Of(image(10)).Verb("pull").By != "nomad" || len(p.last) != keptPulls || len(p.order) != keptPulls {
		t.Errorf("%d pulls are kept", len(p.last))
	}
}

func TestPullsUnderWay(t *testing.T) {
	var p Pulls
	none, began := p.Underway("")
	if len(none) != 0 {
		t.Fatalf("pulls under way: %v", none)
	}
	var opts core.PullOptions
	w := p.Watch("cri", "busybox", &opts)
	<-began
	opts.Progress(core.PullProgress{Status: "resolving"})
	opts.Progress(core.PullProgress{Blob: "sha256:a", Status: "downloading", Done: 1, Total: 9})
	opts.Progress(core.PullProgress{Blob: "sha256:a", Status: "downloading", Done: 5, Total: 9})
	opts.Progress(core.PullProgress{Blob: "sha256:b", Status: "exists"})
	list, ended := p.Underway("")
	if len(list) != 1 || list[0].Owner != "cri" || list[0].Ref != "busybox" || list[0].Status != "resolving" || len(list[0].Blobs) != 2 || list[0].Blobs[0].Done != 5 {
		t.Errorf("pulls under way: %+v", list)
	}
	if other, _ := p.Underway("cli"); len(other) != 0 {
		t.Errorf("the pulls of another owner: %+v", other)
	}
	w.Leave()
	<-ended
	if list, _ = p.Underway(""); len(list) != 0 {
		t.Errorf("pulls under way after the end: %+v", list)
	}
}
