package network_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// dirKV is a key-value store that outlives a killed process: a file per key.
type dirKV string

func (d dirKV) file(key string) string {
	return filepath.Join(string(d), hex.EncodeToString([]byte(key)))
}

func (d dirKV) Get(key string) ([]byte, error) {
	b, err := os.ReadFile(d.file(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key %q: %w", key, errdefs.ErrNotFound)
	}
	return b, err
}

func (d dirKV) Put(key string, value []byte) error {
	if err := os.WriteFile(filepath.Join(string(d), "new"), value, 0o600); err != nil {
		return err
	}
	return os.Rename(filepath.Join(string(d), "new"), d.file(key))
}

func (d dirKV) Delete(key string) error {
	if err := os.Remove(d.file(key)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d dirKV) All(prefix string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		list, err := os.ReadDir(string(d))
		if err != nil {
			return
		}
		for _, e := range list {
			key, err := hex.DecodeString(e.Name())
			if err != nil || !strings.HasPrefix(string(key), prefix) {
				continue
			}
			if value, err := d.Get(string(key)); err == nil && !yield(string(key), value) {
				return
			}
		}
	}
}

// restlessArg makes this program set sandboxes up and tear them down until it is killed.
const restlessArg = "restless"

func openAt(dir string, log *slog.Logger) (*network.Network, error) {
	conf := netconf.DefaultConfig()
	conf.Mode, conf.LeaseRest = netconf.ModeBuiltin, 0
	return network.New(network.Options{Config: conf, Store: dirKV(filepath.Join(dir, "kv")), StateDir: filepath.Join(dir, "state"), Logger: log})
}

// restless says each time that something has ended.
func restless(dir, one, two string) error {
	n, err := openAt(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	ctx := context.Background()
	for {
		for i := range 2 {
			if err := n.Overlays.Open(ctx, anOverlay(i+1)); err != nil {
				return err
			}
			fmt.Println("opened")
		}
		task := core.NetworkRequest{Sandbox: networktest.SandboxID(1), Namespace: one}
		task.Config.Attach = []core.Attachment{on(1, 7), on(2, 7), {Network: core.NetworkDefault}}
		task.Config.Attach[0].Open = []core.Port{{Proto: "tcp", Host: 80, Container: 8080}}
		late := core.NetworkRequest{Sandbox: networktest.SandboxID(2), Namespace: two}
		for _, req := range []*core.NetworkRequest{&task, &late} {
			if req.Last, err = n.Setup(ctx, *req); err != nil {
				return err
			}
			fmt.Println("set up")
		}
		if late.Last, err = n.Attach(ctx, late, on(1, 8)); err != nil {
			return err
		}
		fmt.Println("attached")
		if late.Last, err = n.Detach(ctx, late, on(1, 8).Network); err != nil {
			return err
		}
		fmt.Println("detached")
		for _, req := range []core.NetworkRequest{task, late} {
			if err := n.Teardown(ctx, req); err != nil {
				return err
			}
			fmt.Println("torn down")
		}
		if err := n.Overlays.Close(ctx, "net2"); err != nil {
			return err
		}
		fmt.Println("closed")
	}
}

// TestKilledAnywhere kills the process that sets up sandboxes on overlays, wherever it is. The next
// one leaves nothing without a record.
func TestKilledAnywhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "kv"), 0o700); err != nil {
			t.Fatal(err)
		}
		one, two := networktest.NewNamespace(t), networktest.NewNamespace(t)
		const rounds, steps = 20, 10
		for round := range rounds {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", restlessArg, dir, one.Path, two.Path)
			cmd.Stderr = t.Output()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for range round%steps + 1 {
				if !lines.Scan() {
					t.Fatalf("round %d: it ended by itself: %v", round, cmd.Wait())
				}
			}
			<-time.After(rand.N(20 * time.Millisecond))
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			wantNothing(t, dir, fmt.Sprintf("round %d, after %q", round, lines.Text()), one, two)
			if t.Failed() {
				break
			}
		}
	})
}

// wantNothing starts the next process, without any sandbox to recover.
func wantNothing(t *testing.T, dir, when string, boxes ...*networktest.Namespace) {
	t.Helper()
	n, err := openAt(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Recover(t.Context(), nil); err != nil {
		t.Errorf("%s: recover: %v", when, err)
	}
	if ids, err := n.Sandboxes(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("%s: left %v, %v", when, ids, err)
	}
	for _, b := range boxes {
		if text := networktest.Run(t, "nsenter --net="+b.Path+" ip -o link"); strings.Contains(text, "eth") {
			t.Errorf("%s: left %s", when, text)
		}
	}
	if err := errors.Join(n.Release(t.Context()), n.Close()); err != nil {
		t.Errorf("%s: release: %v", when, err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "state", "overlays")); err == nil && len(left) > 0 {
		t.Errorf("%s: left %v", when, left)
	}
}
