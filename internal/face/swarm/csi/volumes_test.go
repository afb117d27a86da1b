package csi_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/csi"
	"github.com/longshore/longshore/internal/face/swarm/csi/csitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a driver and the volumes of a node that has it.
type rig struct {
	*csi.Volumes
	t      *testing.T
	driver *csitest.Driver
	dir    string
	stop   func()

	mu          sync.Mutex // guards secrets, unpublished, news
	secrets     map[string]string
	unpublished []string
	news        chan struct{} // closed at the next callback
}

func newRig(t *testing.T, set func(*csitest.Driver)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, driver: csitest.New(t, dir), dir: t.TempDir(), secrets: map[string]string{}, news: make(chan struct{})}
	if set != nil {
		set(r.driver)
	}
	r.start()
	return r
}

// start is an agent that starts.
func (r *rig) start() {
	r.t.Helper()
	happened := func(fn func()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		fn()
		close(r.news)
		r.news = make(chan struct{})
	}
	v, err := csi.New(csi.Options{
		Drivers: map[string]string{"test": r.driver.Socket}, Dir: r.dir, Logger: slog.New(slog.DiscardHandler),
		Secret: func(id string) ([]byte, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			s, ok := r.secrets[id]
			return []byte(s), ok
		},
		Changed:     func(string) { happened(func() {}) },
		Described:   func() { happened(func() {}) },
		Unpublished: func(id string) { happened(func() { r.unpublished = append(r.unpublished, id) }) },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.Start(ctx)
	r.Volumes = v
	r.stop = func() {
		cancel()
		v.Wait()
		if err := v.Close(); err != nil {
			r.t.Error(err)
		}
		r.stop = func() {}
	}
	r.t.Cleanup(func() { r.stop() })
}

// until waits until ok, checked after each call of the driver's and each callback.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		news := r.news
		r.mu.Unlock()
		called := r.driver.Changed()
		if ok() {
			return
		}
		select {
		case <-news:
		case <-called:
		case <-deadline.C:
			r.t.Fatalf("never: %s; calls: %v", what, r.driver.Calls())
		}
	}
}

// told returns the volumes reported to the managers as unpublished.
func (r *rig) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.unpublished)
}

// used waits until a task has the directory of a volume.
func (r *rig) used(id, task string) (dir string) {
	r.t.Helper()
	r.until(task+" has "+id, func() bool {
		var err error
		dir, err = r.Use(id, task)
		return err == nil
	})
	return dir
}

func (r *rig) assign(a *swarmv1.VolumeAssignment) {
	r.t.Helper()
	if err := r.Assign(a); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(a *swarmv1.VolumeAssignment) {
	r.t.Helper()
	if err := r.Remove(a); err != nil {
		r.t.Fatal(err)
	}
}

// count counts the calls for a volume.
func (r *rig) count(call string) (n int) {
	for _, c := range r.driver.Calls() {
		if c == call {
			n++
		}
	}
	return n
}

// calls are those that change something.
func (r *rig) calls() (list []string) {
	for _, c := range r.driver.Calls() {
		if strings.Contains(c, "Volume ") {
			list = append(list, c)
		}
	}
	return list
}

func volume(id string) *swarmv1.VolumeAssignment {
	return &swarmv1.VolumeAssignment{Id: id, VolumeId: "of-" + id, Driver: &swarmv1.Driver{Name: "test"}, AccessMode: &swarmv1.VolumeAccessMode{AccessType: &swarmv1.VolumeAccessMode_Mount{Mount: &swarmv1.VolumeAccessMode_MountVolume{}}}}
}

// TestAVolumeFromAssignmentToRemoval: staged, published, unpublished and unstaged, in
// this order; and told only then.
func TestAVolumeFromAssignmentToRemoval(t *testing.T) {
	for name, c := range map[string]struct {
		staging bool
		want    []string
	}{
		"with staging":    {true, []string{"NodeStageVolume of-v", "NodePublishVolume of-v", "NodeUnpublishVolume of-v", "NodeUnstageVolume of-v"}},
		"without staging": {false, []string{"NodePublishVolume of-v", "NodeUnpublishVolume of-v"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(d *csitest.Driver) { d.Staging = c.staging })
			r.until("the driver is described", func() bool { return len(r.Describe()) == 1 })
			if d := r.Describe()[0]; d.GetPluginName() != "test" || d.GetNodeId() != "here" || d.GetMaxVolumesPerNode() != 10 {
				t.Errorf("described as %v", d)
			}
			if _, err := r.Use("v", "task"); !errors.Is(err, csi.ErrWaits) {
				t.Errorf("a volume that was not assigned: %v", err)
			}
			r.assign(volume("v"))
			if st, err := os.Stat(r.used("v", "task")); err != nil || !st.IsDir() {
				t.Errorf("its directory: %v, %v", st, err)
			}
			r.assign(volume("v")) // again, which is no news
			r.remove(volume("v"))
			if _, err := r.Use("v", "other"); !errors.Is(err, csi.ErrWaits) {
				t.Errorf("a volume that is taken away: %v", err)
			}
			if r.count("NodeUnpublishVolume of-v") > 0 {
				t.Error("it was unpublished under a task")
			}
			r.Release("task")
			r.until("it is told", func() bool { return len(r.told()) == 1 })
			if got := r.calls(); !slices.Equal(got, c.want) {
				t.Errorf("calls %v, want %v", got, c.want)
			}
			if entries, err := os.ReadDir(r.dir); err != nil || len(entries) > 0 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

// TestVolumesWaitForTheirSecrets, which are kept nowhere.
func TestVolumesWaitForTheirSecrets(t *testing.T) {
	r := newRig(t, func(d *csitest.Driver) { d.Secret = map[string]string{"key": "planted-secret"} })
	a := volume("v")
	a.Secrets = []*swarmv1.VolumeSecret{{Key: "key", Secret: "s"}}
	r.assign(a)
	r.until("it says what it waits for", func() bool {
		_, err := r.Use("v", "task")
		return errors.Is(err, csi.ErrWaits) && strings.Contains(err.Error(), "secret")
	})
	r.mu.Lock()
	r.secrets["s"] = "planted-secret"
	r.mu.Unlock()
	r.Kick()
	r.used("v", "task")
	text, err := os.ReadFile(filepath.Join(r.dir, "v", "volume.json"))
	if err != nil || strings.Contains(string(text), "planted") {
		t.Errorf("the record: %s, %v", text, err)
	}
}

// TestADriverThatHangsOrFails keeps no other volume waiting, and its call is undone when the volume
// is not wanted any more.
func TestADriverThatHangsOrFails(t *testing.T) {
	r := newRig(t, nil)
	r.driver.Hook(func(ctx context.Context, call string) error {
		switch call {
		case "NodeStageVolume of-hangs":
			<-ctx.Done()
			return ctx.Err()
		case "NodeUnstageVolume of-fails":
			if r.count(call) < 3 {
				return status.Error(codes.Internal, "the disk is busy")
			}
		}
		return nil
	})
	r.assign(volume("hangs"))
	r.until("it hangs", func() bool { return r.count("NodeStageVolume of-hangs") == 1 })
	r.assign(volume("fails"))
	r.used("fails", "task")
	r.Release("task")
	r.remove(volume("fails"))
	r.until("it is told in the end", func() bool { return slices.Equal(r.told(), []string{"fails"}) })
	if n := r.count("NodeUnstageVolume of-fails"); n != 3 {
		t.Errorf("%d tries", n)
	}
	r.remove(volume("hangs"))
	r.until("what hung is told", func() bool { return slices.Equal(r.told(), []string{"fails", "hangs"}) })
	if held := r.driver.Holds(); len(held) > 0 {
		t.Errorf("the driver holds %v", held)
	}
}

// TestADriverThatIsNotThere may come later.
func TestADriverThatIsNotThere(t *testing.T) {
	r := newRig(t, nil)
	r.driver.Down()
	r.assign(volume("v"))
	r.until("it says why it waits", func() bool {
		_, err := r.Use("v", "task")
		return err != nil && strings.Contains(err.Error(), "CSI driver test: ")
	})
	r.driver.Up(t)
	r.used("v", "task")
	other := volume("w")
	other.Driver.Name = "another"
	r.assign(other)
	r.until("it says that there is none", func() bool {
		_, err := r.Use("w", "task")
		return err != nil && strings.Contains(err.Error(), `no CSI driver "another"`)
	})
}

// TestWhatIsNoVolumeOfANode is refused, and leaves nothing.
func TestWhatIsNoVolumeOfANode(t *testing.T) {
	r := newRig(t, nil)
	for _, id := range []string{"", "..", ".", "a/b", "a\x00", strings.Repeat("a", 200)} {
		if err := r.Assign(volume(id)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("assign %q: %v", id, err)
		}
		if err := r.Remove(volume(id)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("remove %q: %v", id, err)
		}
		if _, err := r.Use(id, "task"); !errdefs.IsInvalidArgument(err) {
			t.Errorf("use %q: %v", id, err)
		}
	}
	block := volume("v")
	block.AccessMode.AccessType = &swarmv1.VolumeAccessMode_Block{Block: &swarmv1.VolumeAccessMode_BlockVolume{}}
	r.assign(block)
	r.until("a device is refused", func() bool {
		_, err := r.Use("v", "task")
		return errdefs.IsNotImplemented(err) && !errors.Is(err, csi.ErrWaits)
	})
	r.remove(block)
	r.until("it is told", func() bool { return slices.Equal(r.told(), []string{"v"}) })
	if got := r.calls(); len(got) > 0 {
		t.Errorf("calls %v", got)
	}
}

// TestAfterAnAgentsDeath a volume is as it was: its user continues, a waiting task gets it, and one
// that the managers forgot goes with its last user, unreported.
func TestAfterAnAgentsDeath(t *testing.T) {
	r := newRig(t, nil)
	for _, id := range []string{"used", "forgotten", "back"} {
		r.assign(volume(id))
		r.used(id, "task")
	}
	r.stop()
	before := r.calls()
	r.start()
	if _, err := r.Use("used", "another"); err != nil {
		t.Errorf("before a manager has said anything: %v", err)
	}
	for _, id := range []string{"used", "forgotten", "back"} {
		r.Took(id, "task")
	}
	r.assign(volume("used"))
	r.remove(volume("back"))
	r.remove(volume("unknown")) // as after a boot
	r.Keep(map[string]bool{"used": true, "back": true, "unknown": true})
	r.until("what is not known is undone again", func() bool { return slices.Equal(r.told(), []string{"unknown"}) })
	if got := r.calls(); len(got) != len(before)+2 {
		t.Errorf("more than that: %v", got[len(before):])
	}
	r.Release("task")
	r.until("all is undone that is not wanted", func() bool {
		return slices.Equal(r.driver.Holds(), []string{"of-used"}) && len(r.told()) == 2
	})
	if got := r.told(); !slices.Equal(got, []string{"unknown", "back"}) {
		t.Errorf("told of %v", got)
	}
}

// TestAnAgentThatDiesWhileItPublishes: its successor knows of it.
func TestAnAgentThatDiesWhileItPublishes(t *testing.T) {
	r := newRig(t, nil)
	r.driver.Hook(func(ctx context.Context, call string) error {
		if call == "NodePublishVolume of-v" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	r.assign(volume("v"))
	r.until("it hangs", func() bool { return r.count("NodePublishVolume of-v") == 1 })
	r.stop()
	r.driver.Hook(nil)
	r.start()
	if _, err := r.Use("v", "task"); !errors.Is(err, csi.ErrWaits) {
		t.Errorf("what was not published: %v", err)
	}
	r.Keep(nil)
	r.until("it is undone", func() bool { return r.count("NodeUnstageVolume of-v") == 1 && len(r.driver.Holds()) == 0 })
	if got := r.told(); len(got) > 0 {
		t.Errorf("told of %v", got)
	}
}

// TestClearing removes everything; a volume that the driver keeps fails it, and stays for the next
// try.
func TestClearing(t *testing.T) {
	r := newRig(t, nil)
	for _, id := range []string{"a", "b"} {
		r.assign(volume(id))
		r.used(id, "task")
	}
	r.stop()
	r.start()
	r.driver.Hook(func(_ context.Context, call string) error {
		if call == "NodeUnpublishVolume of-b" {
			return status.Error(codes.Internal, "not now")
		}
		return nil
	})
	r.stop()
	clearAll := func() error {
		v, err := csi.New(csi.Options{Drivers: map[string]string{"test": r.driver.Socket}, Dir: r.dir, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return errors.Join(v.Clear(t.Context()), v.Close())
	}
	if err := clearAll(); err == nil || !strings.Contains(err.Error(), "cluster volume b: CSI driver test: NodeUnpublishVolume: Internal: not now") {
		t.Errorf("clear: %v", err)
	}
	r.driver.Hook(nil)
	if err := clearAll(); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if held := r.driver.Holds(); len(held) > 0 {
		t.Errorf("the driver holds %v", held)
	}
}

// TestADamagedRecord is left to the managers, which decide on the volume.
func TestADamagedRecord(t *testing.T) {
	r := newRig(t, nil)
	r.assign(volume("v"))
	r.used("v", "task")
	r.stop()
	if err := os.WriteFile(filepath.Join(r.dir, "v", "volume.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.remove(volume("v"))
	r.until("it is told", func() bool { return slices.Equal(r.told(), []string{"v"}) })
	if entries, err := os.ReadDir(r.dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
