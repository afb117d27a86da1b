package cri

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc/codes"

	v1 "github.com/longshore/longshore/api/cri/v1"
)

// TestPoliciesAreAskedAboutExecs: about those of both kinds.
func TestPoliciesAreAskedAboutExecs(t *testing.T) {
	n := newTestNode(t)
	id := n.running(t, n.pod(t, "p"), "c")
	for _, err := range n.RefusesExecs(func() error {
		_, err := n.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"x"}})
		return err
	}) {
		wantCode(t, "ExecSync", err, codes.PermissionDenied)
	}
	n.RefusesExecs(func() error {
		r, err := n.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Cmd: []string{"x"}, Stdout: true})
		if err != nil {
			return err
		}
		var told []byte
		for ws := channels(t, r.GetUrl()); ; {
			var msg []byte
			if websocket.Message.Receive(ws, &msg) != nil {
				break
			}
			if len(msg) > 0 && msg[0] == 3 {
				told = append(told, msg[1:]...)
			}
		}
		if len(told) == 0 {
			return nil
		}
		return errors.New(string(told))
	})
	n.Policy.Refuse("start ")
	created := n.container(t, n.pod(t, "q"), "c")
	_, err := n.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: created})
	wantCode(t, "start", err, codes.PermissionDenied)
	if got := n.status(t, created).GetState(); got != v1.ContainerState_CONTAINER_CREATED {
		t.Error(fmt.Sprint("a refused start leaves it ", got))
	}
}
