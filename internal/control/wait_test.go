package control_test

import (
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control"
)

// TestConditionsOfAWait checks each condition. Changes after the headers of the answer are seen.
func TestConditionsOfAWait(t *testing.T) {
	r := newRig(t)
	conn := dial(t, filepath.Join(r.sockets, control.SocketName))
	// begin returns after the headers. The function that it returns waits for the answer.
	begin := func(condition string) func() (*longshorev1.WaitResponse, error) {
		t.Helper()
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{}, longshorev1.Containers_Wait_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&longshorev1.WaitRequest{Name: "c", Condition: condition}); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
		return func() (*longshorev1.WaitResponse, error) {
			resp := &longshorev1.WaitResponse{}
			return resp, stream.RecvMsg(resp)
		}
	}
	wants := func(what string, answer func() (*longshorev1.WaitResponse, error), code int32) {
		t.Helper()
		if resp, err := answer(); err != nil || resp.GetAutopsy() == nil || resp.GetAutopsy().GetCode() != code {
			t.Errorf("%s: %v, %v, want the code %d", what, resp, err, code)
		}
	}
	start := func() {
		t.Helper()
		if _, err := r.containers.Start(t.Context(), &longshorev1.StartRequest{Name: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Command: []string{"both"}})
	if resp, err := begin("not-running")(); err != nil || resp.GetAutopsy() != nil {
		t.Errorf("before the first start: %v, %v", resp, err)
	}
	usual, next := begin(""), begin("next-exit")
	start()
	wants("the usual wait", usual, 7)
	wants("the next end", next, 7)
	wants("an ended container", begin("not-running"), 7)
	next, removed := begin("next-exit"), begin("removed")
	start()
	wants("the end after", next, 7)
	next = begin("next-exit")
	if _, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c", Force: true}); err != nil {
		t.Fatal(err)
	}
	wants("the removal", removed, 7)
	_, err := next()
	wantCode(t, err, codes.NotFound, "removed before it ended")
	_, err = r.containers.Wait(t.Context(), &longshorev1.WaitRequest{Name: "c", Condition: "removed"})
	wantCode(t, err, codes.NotFound, "")
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox"})
	removed = begin("removed")
	_, err = r.containers.Wait(t.Context(), &longshorev1.WaitRequest{Name: "c", Condition: "stopped"})
	wantCode(t, err, codes.InvalidArgument, "next-exit")
	if _, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c"}); err != nil {
		t.Fatal(err)
	}
	if resp, err := removed(); err != nil || resp.GetAutopsy() != nil {
		t.Errorf("the removal of one that never ran: %v, %v", resp, err)
	}
}
