package nlwrap

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestRetryAsksAgainWhenInterrupted(t *testing.T) {
	other := errors.New("other")
	for _, tc := range []struct {
		name  string
		errs  []error
		calls int
		want  error
	}{
		{"at once", []error{nil}, 1, nil},
		{"interrupted twice", []error{unix.EINTR, netlink.ErrDumpInterrupted, nil}, 3, nil},
		{"another error is final", []error{other, nil}, 1, other},
	} {
		t.Run(tc.name, func(t *testing.T) {
			calls := 0
			_, err := retry(func() (int, error) {
				calls++
				return calls, tc.errs[calls-1]
			})
			if calls != tc.calls || !errors.Is(err, tc.want) {
				t.Errorf("%d calls, error %v; want %d, %v", calls, err, tc.calls, tc.want)
			}
		})
	}
}

func TestRetryGivesUp(t *testing.T) {
	calls := 0
	got, err := retry(func() (int, error) {
		calls++
		return 7, netlink.ErrDumpInterrupted
	})
	if got != 7 || !errors.Is(err, netlink.ErrDumpInterrupted) || calls != attempts {
		t.Errorf("got %d, %v after %d calls", got, err, calls)
	}
}
