package control_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

func (r *rig) events(t *testing.T, req *longshorev1.EventsRequest) []*longshorev1.Event {
	t.Helper()
	stream, err := r.node.Events(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var list []*longshorev1.Event
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m.GetEvent())
	}
}

func (r *rig) dump(t *testing.T) string {
	t.Helper()
	stream, err := r.node.Dump(t.Context(), &longshorev1.DumpRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		raw.Write(m.GetData())
	}
	zip, err := gzip.NewReader(&raw)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for tr := tar.NewReader(zip); ; {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("== " + hdr.Name + "\n" + string(body))
	}
}

func TestEventsStartAtAnyPoint(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	all := r.events(t, &longshorev1.EventsRequest{})
	if len(all) < 5 {
		t.Fatalf("%d events", len(all))
	}
	for i, e := range all {
		if e.GetSeq() != uint64(i)+1 {
			t.Errorf("event %d has number %d", i, e.GetSeq())
		}
	}
	since := all[1].GetSeq()
	if got := r.events(t, &longshorev1.EventsRequest{SinceSeq: &since}); len(got) != len(all)-2 {
		t.Errorf("%d events since %d of %d", len(got), since, len(all))
	}
	started := r.events(t, &longshorev1.EventsRequest{Name: "c", Kinds: []string{"container.started"}})
	if len(started) != 1 || started[0].GetContainer() != c.GetId() {
		t.Errorf("started: %v", started)
	}
	if got := r.events(t, &longshorev1.EventsRequest{Owner: "cri"}); len(got) != 0 {
		t.Errorf("cri's: %v", got)
	}
	// Following, the next event comes as it happens.
	last := all[len(all)-1].GetSeq()
	stream, err := r.node.Events(t.Context(), &longshorev1.EventsRequest{SinceSeq: &last, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Supervisor.Exit(core.Ref{Container: core.ID(c.GetId())}, 4)
	m, err := stream.Recv()
	if err != nil || m.GetEvent().GetKind() != "container.exited" || m.GetEvent().GetAutopsy().GetStatus() != 4 {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestDumpHasAllPartsOfABugReport(t *testing.T) {
	r := newRig(t)
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	text := r.dump(t)
	for _, want := range []string{"version.json", "1.2.3", "goroutines.txt", "goroutine ", "config.toml", "[agent]", "doctor.json", "objects.json", "events.jsonl", "container.started"} {
		if !strings.Contains(text, want) {
			t.Errorf("the dump lacks %s", want)
		}
	}
}

func TestNodeCallsAnswer(t *testing.T) {
	r := newRig(t)
	v, err := r.node.Version(t.Context(), &longshorev1.VersionRequest{})
	if err != nil || v.GetVersion() != "1.2.3" || v.GetPid() != int32(os.Getpid()) || len(v.GetRuntimes()) != 1 || !v.GetRuntimes()[0].GetDefault() {
		t.Errorf("version %v, %v", v, err)
	}
	d, err := r.node.Doctor(t.Context(), &longshorev1.DoctorRequest{})
	if err != nil || len(d.GetFindings()) != 1 || d.GetFindings()[0].GetStatus() != "ok" {
		t.Errorf("doctor %v, %v", d, err)
	}
	c, err := r.node.Check(t.Context(), &longshorev1.CheckRequest{})
	if err != nil || len(c.GetFindings()) != 0 {
		t.Errorf("check %v, %v", c, err)
	}
	cfg, err := r.node.Config(t.Context(), &longshorev1.ConfigRequest{})
	if err != nil || cfg.GetToml() != "[agent]\n" {
		t.Errorf("config %v, %v", cfg, err)
	}
}

func TestStatsOfRunningContainers(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	r.create(t, &longshorev1.CreateRequest{Name: "idle", Image: "busybox"})
	stream, err := r.containers.Stats(t.Context(), &longshorev1.StatsRequest{Interval: durationpb.New(100e6)})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		m, err := stream.Recv()
		if err != nil || len(m.GetContainers()) != 1 || m.GetContainers()[0].GetId() != c.GetId() {
			t.Fatalf("round %d: %v, %v", round, m, err)
		}
	}
	bad, err := r.containers.Stats(t.Context(), &longshorev1.StatsRequest{Interval: durationpb.New(1)})
	if err == nil {
		_, err = bad.Recv()
	}
	wantCode(t, err, codes.InvalidArgument, "shorter")
	if _, err := r.containers.Top(t.Context(), &longshorev1.TopRequest{Name: "c"}); err != nil {
		t.Error(err)
	}
	_, err = r.containers.Top(t.Context(), &longshorev1.TopRequest{Name: "idle"})
	wantCode(t, err, codes.FailedPrecondition, "created")
}

// TestADamagedImageIsRemoved: also one that only the name in the request can name.
func TestADamagedImageIsRemoved(t *testing.T) {
	r := newRig(t)
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox"})
	r.Images.Damage(core.OwnerCLI, "busybox")
	_, err := r.images.RemoveImage(t.Context(), &longshorev1.RemoveImageRequest{Name: "busybox"})
	wantCode(t, err, codes.FailedPrecondition, "--force")
	if _, err := r.images.RemoveImage(t.Context(), &longshorev1.RemoveImageRequest{Name: "busybox", Force: true}); err != nil {
		t.Error(err)
	}
	_, err = r.images.RemoveImage(t.Context(), &longshorev1.RemoveImageRequest{Name: "busybox"})
	wantCode(t, err, codes.PermissionDenied, "another owner")
}

func TestImagesAreListedWithTheirOwners(t *testing.T) {
	r := newRig(t)
	list, err := r.images.ListImages(t.Context(), &longshorev1.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]int{}
	for _, img := range list.GetImages() {
		owners[img.GetOwner()]++
	}
	if owners["cli"] != 1 || owners["cri"] != 1 {
		t.Errorf("owners %v", owners)
	}
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox"})
	_, err = r.images.RemoveImage(t.Context(), &longshorev1.RemoveImageRequest{Name: "busybox"})
	wantCode(t, err, codes.FailedPrecondition, "--force")
	if _, err := r.images.TagImage(t.Context(), &longshorev1.TagImageRequest{Source: "busybox", Target: "mine:1"}); err != nil {
		t.Error(err)
	}
	if _, err := r.images.RemoveImage(t.Context(), &longshorev1.RemoveImageRequest{Name: "busybox", Force: true}); err != nil {
		t.Error(err)
	}
	_, err = r.images.RemoveImage(t.Context(), &longshorev1.RemoveImageRequest{Name: "busybox"})
	wantCode(t, err, codes.PermissionDenied, "another owner")
	insp, err := r.images.InspectImage(t.Context(), &longshorev1.InspectImageRequest{Name: "busybox"})
	if err != nil || strings.Contains(string(insp.GetJson()), "FROM=image") || !strings.Contains(string(insp.GetJson()), "FROM=<hidden>") {
		t.Errorf("inspect %s, %v", insp.GetJson(), err)
	}
	if _, err := r.images.ImageUsage(t.Context(), &longshorev1.ImageUsageRequest{}); err != nil {
		t.Error(err)
	}
}

func TestVolumesInUseAreNotRemoved(t *testing.T) {
	r := newRig(t)
	if _, err := r.volumes.CreateVolume(t.Context(), &longshorev1.CreateVolumeRequest{Name: "free", Labels: map[string]string{"a": "b"}}); err != nil {
		t.Fatal(err)
	}
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "used", Target: "/v"}}})
	list, err := r.volumes.ListVolumes(t.Context(), &longshorev1.ListVolumesRequest{})
	if err != nil || len(list.GetVolumes()) != 2 || list.GetVolumes()[0].GetName() != "free" || list.GetVolumes()[0].GetOwner() != "cli" {
		t.Fatalf("%v, %v", list, err)
	}
	if _, err := r.volumes.RemoveVolume(t.Context(), &longshorev1.RemoveVolumeRequest{Name: "used"}); err == nil {
		t.Error("a volume in use was removed")
	}
	pruned, err := r.volumes.PruneVolumes(t.Context(), &longshorev1.PruneVolumesRequest{})
	if err != nil || len(pruned.GetVolumes()) != 0 {
		t.Errorf("without all, of volumes with a name: %v, %v", pruned, err)
	}
	pruned, err = r.volumes.PruneVolumes(t.Context(), &longshorev1.PruneVolumesRequest{All: true})
	if err != nil || len(pruned.GetVolumes()) != 1 || pruned.GetVolumes()[0].GetName() != "free" {
		t.Errorf("%v, %v", pruned, err)
	}
}

func TestListenReplacesAnEarlierAgentsSockets(t *testing.T) {
	r := newRig(t)
	r.stop()
	if _, err := os.Stat(filepath.Join(r.sockets, "control.sock")); err != nil {
		t.Fatal(err)
	}
	r.serve(t)
	if _, err := r.node.Version(t.Context(), &longshorev1.VersionRequest{}); err != nil {
		t.Error(err)
	}
}
