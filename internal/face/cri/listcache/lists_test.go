package listcache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
)

func TestAnAnswerIsDecodedAsItsEntries(t *testing.T) {
	items := []*v1.Container{
		{Id: "a", Labels: map[string]string{"k": "v"}, State: v1.ContainerState_CONTAINER_EXITED},
		{}, // of no length
		{Id: strings.Repeat("long", 1<<16)},
	}
	var entries [][]byte
	for _, i := range items {
		e, err := Entry(i)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	for _, answer := range []interface {
		proto.Message
		GetContainers() []*v1.Container
	}{&v1.ListContainersResponse{}, &v1.StreamContainersResponse{}} {
		sent, err := proto.Marshal(Answer(answer, entries))
		if err != nil {
			t.Fatal(err)
		}
		proto.Reset(answer)
		if err := proto.Unmarshal(sent, answer); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(items, answer.GetContainers(), protocmp.Transform()); d != "" {
			t.Errorf("%T: (-want +got):\n%s", answer, d)
		}
	}
	for _, answer := range []proto.Message{&v1.ListPodSandboxResponse{}, &v1.StreamPodSandboxesResponse{}} {
		if f := answer.ProtoReflect().Descriptor().Fields(); f.Len() != 1 || f.Get(0).Number() != number {
			t.Errorf("%T has other fields: %v", answer, f)
		}
	}
}

func TestStreamedListsAreCutIntoMessages(t *testing.T) {
	var items []*v1.PodSandbox
	for i := range 10 {
		items = append(items, &v1.PodSandbox{Id: fmt.Sprint(i), Annotations: map[string]string{"x": strings.Repeat("x", 300<<10)}})
	}
	items = append(items, &v1.PodSandbox{Id: "huge", Annotations: map[string]string{"x": strings.Repeat("x", 2*chunk)}})
	var sizes []int
	var ids []string
	err := InChunks(items, Size, func(c []*v1.PodSandbox) error {
		sizes = append(sizes, len(c))
		for _, i := range c {
			ids = append(ids, i.Id)
		}
		return nil
	})
	if err != nil || !slices.Equal(sizes, []int{3, 3, 3, 1, 1}) || len(ids) != 11 || ids[10] != "huge" {
		t.Errorf("%v, %v, %v", sizes, ids, err)
	}
	if err := InChunks(nil, Length, func([][]byte) error { return errors.New("an empty message") }); err != nil {
		t.Error(err)
	}
}
