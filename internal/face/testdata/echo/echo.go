// Package echo is the smallest face, as docs/checklists.md explains it: an orchestrator of one
// socket and three words. "run NAME IMAGE COMMAND..." runs a container, or finds the one
// of that name; its client sends the input and gets the output and "exit STATUS". "ends"
// lists the containers that have ended, "remove NAME" removes one.
package echo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/ocispec"
)

// Face is the orchestrator. It keeps nothing of its own: containers are found by their
// key, and what watch has seen it sees again.
type Face struct {
	face.Deps
	LogDir string   // has the containers' output, which stays
	ends   sync.Map // exit statuses by name
}

// Name implements face.Face.
func (f *Face) Name() string { return "echo" }

// Serve implements face.Face, for one listener.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	context.AfterFunc(ctx, func() { _ = listeners[0].Close() })
	calls.Go(func() { _ = f.watch(ctx).Run(ctx, f.Engine) })
	for {
		conn, err := listeners[0].Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		calls.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			defer conn.Close()
			if err := f.call(ctx, bufio.NewReader(conn), conn); err != nil {
				_, _ = fmt.Fprintln(conn, "error:", err)
			}
		})
	}
}

// call does what one client asks for.
func (f *Face) call(ctx context.Context, in *bufio.Reader, out io.Writer) error {
	line, _ := in.ReadString('\n')
	switch words := strings.Fields(line); {
	case len(words) > 3 && words[0] == "run":
		return f.run(ctx, words[1:], in, out)
	case len(words) == 1 && words[0] == "ends":
		for name, status := range f.ends.Range {
			_, _ = fmt.Fprintln(out, name, status)
		}
		return nil
	case len(words) == 2 && words[0] == "remove":
		sb, err := f.Engine.SandboxByKey(ctx, core.Key(words[1]))
		if err == nil {
			err = f.Engine.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true})
		}
		return err
	}
	return fmt.Errorf("%q is none of run, ends, remove: %w", line, errdefs.ErrInvalidArgument)
}

// run makes a container, or finds it, and attaches the client until it has ended. A
// client whose agent has died asks again, and gets all of the output.
func (f *Face) run(ctx context.Context, words []string, in io.Reader, out io.Writer) error {
	name, own := core.Key(words[0]), core.Namespace{Mode: core.Shared}
	images := f.Engine.Images.Lease() // an image stays until a container names it
	defer images.Release()
	sandbox := core.SandboxConfig{Key: name, Namespaces: core.Namespaces{Net: own, UTS: own}}
	_, c, err := f.Engine.CreatePair(ctx, engine.Pair{Sandbox: sandbox, Container: func(id core.ID) (core.ContainerConfig, error) {
		img, err := images.Pull(ctx, words[1], core.PullOptions{})
		log := core.Sink{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: f.LogDir + "/" + string(id) + ".log"}
		stdio := core.IO{Stdin: core.StdinOpen, Sinks: []core.Sink{log}}
		return core.ContainerConfig{Key: name, Root: core.Root{Image: img.ID}, Spec: spec(words[2:]), IO: stdio, Run: true}, err
	}})
	if errdefs.IsAlreadyExists(err) {
		c, err = f.Engine.ContainerByKey(ctx, name)
	}
	if err != nil {
		return err
	}
	input := func(_ context.Context, to *attach.Input) error { return to.Copy(in) }
	s := attach.Session{Engine: f.Engine, Ref: core.Ref{Container: c.ID}, Log: &c.Config.IO.Sinks[0], Output: attach.Writers(out, out), Input: input, EndsInput: true}
	if c.State == core.ContainerRunning {
		if s.Streams, err = f.Engine.Streams(ctx, s.Ref, core.StreamOptions{Stdin: true}); err != nil {
			return err
		}
	}
	a, err := s.Run(ctx)
	if err == nil {
		_, err = fmt.Fprintln(out, "exit", a.Exit.Status())
	}
	return err
}

// spec is what every container of the agent has, with the image's user, directory and
// environment.
func spec(command []string) core.SpecFunc {
	return func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
		s, args := ocispec.New(), func(*imagespec.ImageConfig) ([]string, error) { return command, nil }
		_, err := ocispec.Head{User: ocispec.UserNamed(""), Args: args}.Finish(s, r)
		return s, nil, errors.Join(err, ocispec.DefaultSeccomp(s))
	}
}

// watch keeps how containers ended: those that are there, and then each as it comes.
func (f *Face) watch(ctx context.Context) engine.Watch {
	see := func(name core.Key, a *core.Autopsy) {
		if f.ends.Delete(name); a != nil {
			f.ends.Store(name, a.Exit.Status())
		}
	}
	return engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventContainerRemoved},
		List: func(ctx context.Context) error {
			all, err := f.Engine.Containers(ctx, core.Filter{})
			for _, c := range all {
				see(c.Key, c.Main.Autopsy)
			}
			return err
		},
		Event:  func(_ context.Context, e core.Event) error { see(e.Key, e.Autopsy); return nil },
		Failed: func(err error) { f.Logger.WarnContext(ctx, "could not read the event log; will retry", "error", err) },
	}
}
