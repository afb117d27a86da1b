package invalid_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/invalid"
)

func TestTextAndClass(t *testing.T) {
	for _, tt := range []struct {
		err  error
		text string
	}{
		{invalid.Errorf("mount %q: %w", "/a", fs.ErrNotExist), `mount "/a": file does not exist: invalid argument`},
		{invalid.Plainf("'user' is %d: %w", 1, fs.ErrNotExist), "'user' is 1: file does not exist"},
	} {
		if tt.err.Error() != tt.text {
			t.Errorf("text %q, want %q", tt.err, tt.text)
		}
		if !errdefs.IsInvalidArgument(tt.err) || !errors.Is(tt.err, fs.ErrNotExist) {
			t.Errorf("%q: wants its class and its cause", tt.err)
		}
	}
}
