package board_test

import (
	"testing"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/board"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// TestAMessageThatCannotBeEncodedIsRefused, with all that was to be written together with it.
func TestAMessageThatCannotBeEncodedIsRefused(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	good := board.Put(board.Nodes, "good", &swarmv1.Node{Id: "good"}, store.Absent)
	bad := board.Put(board.Nodes, "bad", &swarmv1.Node{Id: "\xff"}, store.Absent)
	if _, err := s.Commit(t.Context(), good, bad); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a string that is not UTF-8: %v", err)
	}
	if _, err := s.Get(t.Context(), good.Key); !errdefs.IsNotFound(err) {
		t.Errorf("a part of a refused transaction was stored: %v", err)
	}
	if _, err := s.Commit(t.Context(), good); err != nil {
		t.Error(err)
	}
}
