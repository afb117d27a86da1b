package agent

import (
	"errors"
	"slices"
	"testing"
)

func TestPartsCloseInTheReverseOrderDespiteErrors(t *testing.T) {
	var open closers
	var closed []string
	bad := errors.New("it is in use")
	for _, name := range []string{"store", "keeper", "network"} {
		open.add(func() error {
			closed = append(closed, name)
			if name == "keeper" {
				return bad
			}
			return nil
		})
	}
	if err := open.close(); !errors.Is(err, bad) || !slices.Equal(closed, []string{"network", "keeper", "store"}) {
		t.Errorf("closed %q: %v", closed, err)
	}
	if err := new(closers).close(); err != nil {
		t.Errorf("nothing is open, and closing it fails: %v", err)
	}
}
