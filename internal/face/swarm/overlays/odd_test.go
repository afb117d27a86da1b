package overlays_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// TestWhatTheDataPathDoesNotTake: records that only it can refuse are tried a few times, and keep nothing else
// from being applied.
func TestWhatTheDataPathDoesNotTake(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		r.announce("back", "evil", gossip.Endpoint{Name: "evil.1.x", Service: "evil", ServiceID: "evil", Addr: addr(1, 30), VIP: addr(1, 255)})
		r.hold(web("a", network("back", 1, 9)))
		r.Running("a")
		<-time.After(time.Minute)
		if o := r.overlay("back"); len(o.Services) != 1 || o.Services[0].Addr != addr(1, 100) || len(o.Names["web"]) != 1 {
			t.Errorf("%+v", o)
		}
		if st := r.Status(); st.Networks[0].Error != "" {
			t.Errorf("%+v", st.Networks[0])
		}
		if n := r.fake.Calls("Prune"); n != 1 {
			t.Errorf("pruned %d times", n)
		}
		if n := r.fake.Calls("SetServices"); n > 10 {
			t.Errorf("%d calls for one service that cannot be", n)
		}
	})
}

// TestATaskThatEndsStaysSo: a repeated Running, as of an agent that resumes an earlier one's tasks, gives it no
// new connections, unless its program was started again.
func TestATaskThatEndsStaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		r.hold(web("a", network("back", 1, 9)))
		r.Running("a", "c1", "two words")
		if r.Ending("a") {
			t.Error("somebody has to hear of it, where nobody is")
		}
		r.Running("a", "c1")
		if _, names := r.hears("back"); len(names) != 1 || !names[0].Disabled {
			t.Errorf("others hear of %v", names)
		}
		r.Ended("a")
		r.announce("back", "theirs", gossip.Peer{Addr: netip.PrefixFrom(addr(1, 30), 24), MAC: "02:42:0a:00:01:1e", Tunnel: there})
		r.settle()
		r.Running("a", "c2")
		if _, names := r.hears("back"); len(names) != 1 || names[0].Disabled || !slices.Equal(names[0].TaskAliases, []string{"c2"}) {
			t.Errorf("others hear of %v", names)
		}
		if first, second := r.Ending("a"), r.Ending("a"); !first || second {
			t.Errorf("others have to hear of it: %t, and again: %t", first, second)
		}
		many := web("b", network("back", 1, 10))
		for n := range 300 {
			many.On[0].Network.Aliases = append(many.On[0].Network.Aliases, fmt.Sprint("a", n))
		}
		if err := r.Hold(t.Context(), many); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "aliases") {
			t.Errorf("a task of which nobody could be told: %v", err)
		}
	})
}

// TestWaitWaits: when it returns nothing is done any more, for any network.
func TestWaitWaits(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.stop()
		begun, goOn := make(chan struct{}), make(chan struct{})
		r.point = func(stage string) error {
			if stage == "overlay.set_peers.before" {
				close(begun)
				<-goOn
			}
			return nil
		}
		r.start()
		r.Resumed()
		r.told()
		r.announce("back", "theirs", gossip.Peer{Addr: netip.PrefixFrom(addr(1, 10), 24), MAC: "02:42:0a:00:01:0a", Tunnel: there})
		r.hold(web("a", network("back", 1, 9)))
		<-begun
		stopped := make(chan struct{})
		go func() {
			r.stop()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("peers are still being set")
		default:
		}
		close(goOn)
		<-stopped
		r.Leave()
	})
}

// TestWhatCannotBeTold: a record that the store does not keep is tried again once a second, and
// logged once.
func TestWhatCannotBeTold(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var full atomic.Bool
		var tries atomic.Int64
		full.Store(true)
		r.stop()
		r.point = func(stage string) error {
			if stage == "overlay.announce_peer.before" {
				if tries.Add(1); full.Load() {
					return fmt.Errorf("no space left: %w", errdefs.ErrUnavailable)
				}
			}
			return nil
		}
		var said strings.Builder
		r.log = slog.New(slog.NewTextHandler(&said, nil))
		r.start()
		r.Resumed()
		r.told()
		for n := range 10 {
			r.hold(web(fmt.Sprint("a", n), network("back", 1, 10+n)))
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(3 * time.Second)
		before := tries.Load()
		<-time.After(10 * time.Second)
		if n := tries.Load() - before; n > 110 {
			t.Errorf("10 tasks: %d tries in 10 seconds", n)
		}
		synctest.Wait()
		if n := strings.Count(said.String(), "could not announce"); n == 0 || n > 20 {
			t.Errorf("%d lines", n)
		}
		full.Store(false)
		r.settle()
		if peers, _ := r.hears("back"); len(peers) != 10 {
			t.Errorf("others hear of %v", peers)
		}
	})
}

// TestATaskThatComesBack on a network of an earlier agent's waits for nobody: the old records are withdrawn
// meanwhile, however long it takes.
func TestATaskThatComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		r.hold(web("a", network("back", 1, 9)))
		r.Running("a")
		r.settle()
		r.stop()
		goOn := r.factory.net.Delay()
		r.start()
		r.Resumed()
		r.told()
		r.settle()
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Hold(ctx, web("b", network("back", 1, 10))); err != nil || time.Since(begun) > time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		r.Attached("b")
		r.Running("b")
		goOn()
		r.settle()
		if peers, names := r.hears("back"); len(peers) != 1 || len(names) != 1 || names[0].Name != "web.1.b" {
			t.Errorf("others hear of %v and %v", peers, names)
		}
	})
}

// TestWhatCannotBeToldBesideADeadMember: a record that the store does not keep is tried again also while the node
// enters the network, which takes half a minute beside a member that has died.
func TestWhatCannotBeToldBesideADeadMember(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tries atomic.Int64
		r.stop()
		r.point = func(stage string) error {
			if stage == "overlay.announce_peer.before" && tries.Add(1) == 1 {
				return fmt.Errorf("no space left: %w", errdefs.ErrUnavailable)
			}
			return nil
		}
		goOn := r.factory.net.Delay()
		r.start()
		r.Resumed()
		r.hold(web("a", network("back", 1, 9)))
		r.settle()
		r.told()
		r.settle()
		if peers, _ := r.hears("back"); len(peers) != 1 {
			t.Errorf("others hear of %v after %d tries", peers, tries.Load())
		}
		goOn()
	})
}

// TestAfterAFlood: a record that was left out because a network had too many names is taken when they are gone.
func TestAfterAFlood(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		r.hold(web("a", network("back", 1, 9)))
		flood := gossip.Endpoint{Name: "evil.1.x", Service: "evil", ServiceID: "evil", Addr: addr(1, 30)}
		for n := range 256 {
			flood.Aliases = append(flood.Aliases, fmt.Sprint("a", n))
		}
		const records = 1100
		for n := range records {
			r.announce("back", fmt.Sprint("evil", n), flood)
		}
		r.settle()
		r.announce("back", "theirs", gossip.Endpoint{Name: "db.1.x", Service: "db", ServiceID: "db", Addr: addr(1, 31), VIP: addr(1, 50), Aliases: flood.Aliases[:100]})
		r.settle()
		if o := r.overlay("back"); len(o.Names["db"]) != 0 {
			t.Error("there was room for it")
		}
		for n := range records {
			if err := r.other.Withdraw(gossip.ID{Network: "back", Endpoint: fmt.Sprint("evil", n)}, flood); err != nil {
				t.Fatal(err)
			}
		}
		r.settle()
		if o := r.overlay("back"); !slices.Equal(o.Names["db"], []netip.Addr{addr(1, 50)}) || len(o.Names["evil"]) != 0 {
			t.Errorf("db is at %v, and the others at %v", o.Names["db"], o.Names["evil"])
		}
	})
}
