// Command swarmkit is swarmkit's own worker with an executor that does nothing, for the bench of
// the protocol's cost without containers. It is in a module of its own, so that the tree depends on
// nothing of swarmkit.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/moby/swarmkit/v2/agent/exec"
	"github.com/moby/swarmkit/v2/api"
	"github.com/moby/swarmkit/v2/node"
	"github.com/sirupsen/logrus"
)

func main() {
	addr := flag.String("addr", "", "a manager's HOST:PORT")
	token := flag.String("token", "", "the join token of workers")
	dir := flag.String("dir", "", "directory for its state")
	flag.Parse()
	logrus.SetLevel(logrus.ErrorLevel) // its log is no part of the protocol's cost
	if err := run(*addr, *token, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "swarmkit:", err)
		os.Exit(1)
	}
}

// run is a worker until a SIGTERM.
func run(addr, token, dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := node.New(&node.Config{
		Hostname: "swarmkit", JoinAddr: addr, JoinToken: token, StateDir: dir, ListenControlAPI: filepath.Join(dir, "control.sock"), Executor: executor{},
	})
	if err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	return n.Err(ctx)
}

// executor has no task do anything.
type executor struct{}

// Describe implements exec.Executor.
func (executor) Describe(context.Context) (*api.NodeDescription, error) {
	return &api.NodeDescription{
		Hostname: "swarmkit", Platform: &api.Platform{OS: runtime.GOOS, Architecture: "x86_64"},
		Resources: &api.Resources{NanoCPUs: 2e9, MemoryBytes: 1 << 30}, Engine: &api.EngineDescription{EngineVersion: "none"},
	}, nil
}

// Configure implements exec.Executor.
func (executor) Configure(context.Context, *api.Node) error { return nil }

// SetNetworkBootstrapKeys implements exec.Executor.
func (executor) SetNetworkBootstrapKeys([]*api.EncryptionKey) error { return nil }

// Controller implements exec.Executor.
func (executor) Controller(*api.Task) (exec.Controller, error) {
	ended := make(chan struct{})
	return controller{ended, sync.OnceFunc(func() { close(ended) })}, nil
}

// controller is a task that is RUNNING until it is shut down.
type controller struct {
	ended chan struct{}
	end   func()
}

// Update implements exec.Controller.
func (controller) Update(context.Context, *api.Task) error { return nil }

// Prepare implements exec.Controller.
func (controller) Prepare(context.Context) error { return nil }

// Start implements exec.Controller.
func (controller) Start(context.Context) error { return nil }

// Wait implements exec.Controller.
func (c controller) Wait(ctx context.Context) error {
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Shutdown implements exec.Controller.
func (c controller) Shutdown(context.Context) error {
	c.end()
	return nil
}

// Terminate implements exec.Controller.
func (controller) Terminate(context.Context) error { return nil }

// Remove implements exec.Controller.
func (controller) Remove(context.Context) error { return nil }

// Close implements exec.Controller.
func (controller) Close() error { return nil }
