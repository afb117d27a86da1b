package translate

import (
	"testing"

	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/wiretest"
)

// TestUnknownValuesOfEnumsAreRefused: none in a task's spec is read as the mildest that we know.
func TestUnknownValuesOfEnumsAreRefused(t *testing.T) {
	found := wiretest.UnknownEnums(t, (&swarmv1.TaskSpec{}).ProtoReflect().Type(), func(path string, req proto.Message) {
		whole := task(func(*swarmv1.Task, *swarmv1.ContainerSpec) {})
		if _, err := Read(whole, theNode); err != nil {
			t.Fatal(err)
		}
		proto.Merge(whole.GetSpec(), req)
		if _, err := Read(whole, theNode); err == nil {
			t.Errorf("%s: it was taken", path)
		}
	})
	if found == 0 {
		t.Error("no enum was found")
	}
}
