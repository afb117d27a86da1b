package engine_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/bolt"
)

// talk is one conversation with an engine: testdata/*.txt. Objects are named by their keys; every
// command prints the events that it causes.
type talk struct {
	t     *testing.T
	n     *enginetest.Node
	store *state.Store
	dir   string
	boots int
	img   core.Image
	ids   map[string]core.ID
	names map[core.ID]string
	seq   uint64
	owner core.Owner
}

func (k *talk) open() {
	if k.store != nil {
		if err := k.store.Close(); err != nil {
			k.t.Fatal(err)
		}
	}
	var err error
	k.store, err = bolt.Open(bolt.Options{State: k.dir + "/state", Root: k.dir + "/root", BootID: fmt.Sprint(k.boots)})
	if err != nil {
		k.t.Fatal(err)
	}
	k.n.Options.Store = k.store
}

func (k *talk) name(key core.Key, id core.ID) {
	if _, ok := k.names[id]; !ok && id != "" {
		k.ids[string(key)], k.names[id] = id, string(key)
	}
}

func (k *talk) client() *engine.Client {
	if k.n.Engine == nil {
		return nil // it has crashed, and the next command restarts it
	}
	if k.owner == "all" {
		return k.n.Engine.All()
	}
	return k.n.As(k.owner)
}

// events prints the new events, with names.
func (k *talk) events() string {
	var b strings.Builder
	err := k.n.Options.Store.View(func(tx core.Tx) error {
		for ev, err := range tx.Events(k.seq) {
			if err != nil {
				return err
			}
			k.seq = ev.Seq
			if ev.Container != "" {
				k.name(ev.Key, ev.Container)
			} else {
				k.name(ev.Key, ev.Sandbox)
			}
			fmt.Fprintf(&b, "%d %s", ev.Seq, ev.Kind)
			if n := k.names[ev.Container]; n != "" {
				fmt.Fprintf(&b, " %s", n)
			} else if n := k.names[ev.Sandbox]; n != "" {
				fmt.Fprintf(&b, " %s", n)
			}
			if ev.Process != "" {
				fmt.Fprintf(&b, " %s", ev.Process)
			}
			if ev.Autopsy != nil {
				fmt.Fprintf(&b, ": %s", ev.Autopsy.Verdict)
			} else if ev.Note != "" {
				fmt.Fprintf(&b, ": %s", ev.Note)
			}
			b.WriteByte('\n')
		}
		return nil
	})
	if err != nil {
		fmt.Fprintf(&b, "error: %v\n", err)
	}
	return k.alias(b.String())
}

// alias replaces IDs by names.
func (k *talk) alias(s string) string {
	for id, name := range k.names {
		s = strings.ReplaceAll(s, string(id), name)
	}
	return strings.ReplaceAll(s, string(k.img.ID), "IMAGE")
}

func arg(d *datadriven.TestData, name, def string) string {
	for _, a := range d.CmdArgs {
		if a.Key == name && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return def
}

func (k *talk) ref(d *datadriven.TestData) core.Ref {
	return core.Ref{Container: k.ids[d.CmdArgs[0].Key], Process: core.ProcessID(arg(d, "process", ""))}
}

func (k *talk) asked(d *datadriven.TestData) core.StopRequest {
	return core.StopRequest{User: arg(d, "user", ""), Call: arg(d, "call", "")}
}

func (k *talk) grace(d *datadriven.TestData) *time.Duration {
	s := arg(d, "grace", "")
	if s == "" {
		return nil
	}
	g, err := time.ParseDuration(s)
	if err != nil {
		k.t.Fatal(err)
	}
	return &g
}

func (k *talk) run(d *datadriven.TestData) string {
	if o := arg(d, "as", ""); o != "" {
		k.owner = core.Owner(o)
	} else {
		k.owner = core.OwnerCRI
	}
	out, err := k.command(d)
	if k.n.Engine != nil {
		k.n.Settle()
	}
	events := k.events()
	if err != nil {
		out += k.alias(fmt.Sprintf("error: %v\n", err))
	}
	if out+events == "" {
		return "ok\n"
	}
	return k.alias(out) + events
}

func (k *talk) command(d *datadriven.TestData) (string, error) {
	ctx, c := k.t.Context(), k.client()
	switch d.Cmd {
	case "sandbox":
		shared := core.Namespace{Mode: core.Shared}
		cfg := core.SandboxConfig{Key: core.Key(d.CmdArgs[0].Key), Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared}}
		if d.HasArg("pid") {
			cfg.Namespaces.PID = shared
		}
		if p := arg(d, "port", ""); p != "" {
			var host uint16
			if _, err := fmt.Sscan(p, &host); err != nil {
				return "", err
			}
			cfg.Network.Ports = []core.Port{{Proto: "tcp", Host: host, Container: 80}}
		}
		_, err := c.CreateSandbox(ctx, cfg)
		return "", err
	case "container":
		cfg := core.ContainerConfig{
			Key: core.Key(d.CmdArgs[0].Key), Sandbox: k.ids[arg(d, "in", "")], Parent: k.ids[arg(d, "below", "")],
			Root: core.Root{Image: k.img.ID}, Spec: enginetest.Args(arg(d, "run", "sleep")), Stop: core.Stop{Signal: arg(d, "signal", "")},
			Init: d.HasArg("init"),
		}
		if d.HasArg("log") {
			cfg.IO.Sinks = []core.Sink{{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: filepath.Join(k.dir, d.CmdArgs[0].Key+".log")}}
		}
		_, err := c.CreateContainer(ctx, cfg)
		return "", err
	case "start":
		return "", c.StartContainer(ctx, k.ref(d).Container)
	case "stop":
		return "", c.StopContainer(ctx, k.ref(d).Container, engine.StopOptions{Grace: k.grace(d), Request: k.asked(d)})
	case "pause":
		return "", c.PauseContainer(ctx, k.ref(d).Container)
	case "resume":
		return "", c.ResumeContainer(ctx, k.ref(d).Container)
	case "remove":
		return "", c.RemoveContainer(ctx, k.ref(d).Container, engine.RemoveOptions{Force: d.HasArg("force"), Request: k.asked(d)})
	case "stop-sandbox":
		return "", c.StopSandbox(ctx, k.ids[d.CmdArgs[0].Key], engine.StopOptions{Grace: k.grace(d)})
	case "remove-sandbox":
		return "", c.RemoveSandbox(ctx, k.ids[d.CmdArgs[0].Key], engine.RemoveOptions{Force: d.HasArg("force")})
	case "exec":
		ref := k.ref(d)
		_, _, err := c.Exec(ctx, ref.Container, core.ProcessConfig{
			ID: ref.Process, Spec: &specs.Process{Args: []string{arg(d, "run", "sh")}}, Ephemeral: d.HasArg("ephemeral"),
		})
		return "", err
	case "remove-process":
		return "", c.RemoveProcess(ctx, k.ref(d), engine.RemoveOptions{Force: d.HasArg("force")})
	case "update":
		limit := int64(1 << 20)
		res, err := c.UpdateContainer(ctx, k.ref(d).Container, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("memory limit %d\n", *res.Memory.Limit), nil
	default:
		return k.node(d)
	}
}

// node handles the commands for events of the node.
func (k *talk) node(d *datadriven.TestData) (string, error) {
	var code, signal int
	switch d.Cmd {
	case "exits":
		if _, err := fmt.Sscan(arg(d, "code", "0")+" "+arg(d, "signal", "0"), &code, &signal); err != nil {
			return "", err
		}
		k.n.Supervisor.ExitAs(k.ref(d), core.Exit{Code: code, Signal: signal})
	case "oom":
		p := k.n.Supervisor.Process(k.ref(d))
		if v := arg(d, "logged", ""); v != "" {
			victim := core.OOMVictim{At: time.Now(), Pid: p.Pid, Memcg: p.Cgroup, Victim: p.Cgroup}
			if v == "child" {
				victim.Pid++
			}
			k.n.OOMLog.Report(victim)
		}
		if d.HasArg("child") {
			k.n.Supervisor.Kills(k.ref(d), 1)
			return "", nil
		}
		k.n.Supervisor.OOM(k.ref(d), 1<<20, 1, 1)
	case "prints":
		return "", k.n.Supervisor.Process(k.ref(d)).Write(1, []byte(d.Input+"\n"))
	case "agent-dies":
		k.n.Stop()
	case "agent-starts":
		k.open()
		k.n.Start()
	case "keeper-dies":
		k.n.KeeperDies(func(ref core.Ref) bool { return ref.Container == k.ids[arg(d, "loses", "")] })
	case "boot":
		k.n.Stop()
		k.boots++
		k.n.Reboot()
		k.open()
		k.n.Start()
	case "list":
		return k.list()
	case "last-exit":
		ev, err := k.client().LastExit(k.t.Context(), d.CmdArgs[0].Key)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d %s\n", ev.Seq, ev.Autopsy.Verdict), nil
	case "left":
		return strings.Join(append(k.n.Left(), ""), "\n"), nil
	case "check":
		list, err := k.n.Engine.Check(k.t.Context())
		var b strings.Builder
		for _, v := range list {
			fmt.Fprintf(&b, "%s\n", v)
		}
		return b.String(), err
	case "fails":
		call, text := d.CmdArgs[0].Key, arg(d, "with", "no luck")
		k.n.Runtime.Fail(failing(call, text))
		k.n.Network.Fail(failing(call, text))
		k.n.Images.Fail(failing(call, text))
	default:
		k.t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return "", nil
}

func failing(call, text string) func(string) error {
	if call == "nothing" {
		return nil
	}
	return func(c string) error {
		if c == call {
			return fmt.Errorf("%s: %s", strings.ToLower(call), text)
		}
		return nil
	}
}

func (k *talk) list() (string, error) {
	ctx, c := k.t.Context(), k.client()
	sbs, err := c.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return "", err
	}
	cs, err := c.Containers(ctx, core.Filter{})
	if err != nil {
		return "", err
	}
	var lines []string
	for _, sb := range sbs {
		lines = append(lines, fmt.Sprintf("%s %s %s", k.names[sb.ID], sb.Owner, sb.State))
	}
	for _, ct := range cs {
		lines = append(lines, fmt.Sprintf("%s %s %s %d execs", k.names[ct.ID], ct.Owner, ct.State, len(ct.Execs)))
	}
	slices.Sort(lines)
	return strings.Join(append(lines, ""), "\n"), nil
}

func TestConversations(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Helper()
		k := &talk{t: t, n: enginetest.Fakes(t), dir: t.TempDir(), ids: map[string]core.ID{}, names: map[core.ID]string{}}
		k.img = k.n.AddImage("busybox", ocispec.ImageConfig{}, nil)
		k.open()
		k.n.Start()
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string { return k.run(d) })
		k.n.Stop()
		if err := k.store.Close(); err != nil {
			t.Error(err)
		}
	})
}
