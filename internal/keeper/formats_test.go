package keeper

import (
	"context"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/wire"
)

// TestAnUpgradeHoldsNothingBackBeforeAQuietMoment: requests that take time are sent while an upgrade waits for the end of others.
func TestAnUpgradeHoldsNothingBackBeforeAQuietMoment(t *testing.T) {
	for name, ends := range map[string]bool{"the request ends": true, "the request never ends": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pair{slow: 1}
				start := time.Now()
				var release func()
				go func() {
					var err error
					if release, err = p.hold(t.Context()); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
				if p.held != nil {
					t.Fatal("requests are held back while one is under way")
				}
				want := quietPatience
				if ends {
					<-time.After(time.Second)
					p.slowEnded()
					want = time.Second
				} else {
					<-time.After(quietPatience)
				}
				synctest.Wait()
				if p.held == nil || time.Since(start) != want {
					t.Fatalf("after %s no request is held back", time.Since(start))
				}
				if _, err := p.hold(t.Context()); err == nil {
					t.Error("two upgrades hold requests back")
				}
				release()
				if p.held != nil {
					t.Error("requests are held back after the upgrade")
				}
			})
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&pair{slow: 1}).hold(ended); err == nil {
		t.Error("an upgrade whose caller has gone holds requests back")
	}
}

// TestSlowRequestsAreCounted: a request that takes time counts until its answer has come.
func TestSlowRequestsAreCounted(t *testing.T) {
	for kind, want := range map[wire.Kind]int{wire.KindRun: 1, wire.KindStatus: 0} {
		here, there := linked(t)
		p := &pair{conn: here, up: make(chan struct{}), calls: map[uint64]*pending{}}
		answered := make(chan error)
		go func() {
			_, err := p.try(t.Context(), kind, &wire.Command{}, nil)
			answered <- err
		}()
		if _, err := receive(there.UnixConn); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		slow := p.slow
		p.mu.Unlock()
		if slow != want {
			t.Errorf("%v: %d requests take time, want %d", kind, slow, want)
		}
		p.lostConn()
		if err := <-answered; err == nil {
			t.Error("a request without an answer succeeded")
		}
		if p.slow != 0 {
			t.Errorf("%v: after its end %d requests take time", kind, p.slow)
		}
	}
}

// linked returns both ends of a connection.
func linked(t *testing.T) (here, there *link) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*link, len(fds))
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = &link{UnixConn: c.(*net.UnixConn), version: wire.Newest()}
	}
	return ends[0], ends[1]
}
