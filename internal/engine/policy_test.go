package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// policed is a node with two policies, and the life of a pod and of a pair on it. The engine asks
// the second policy last.
type policed struct {
	*enginetest.Node
	last     *enginetest.Policy
	img      core.Image
	client   *engine.Client
	pod, two core.Sandbox
	c, task  core.Container
}

func newPoliced(t *testing.T) *policed {
	t.Helper()
	p := &policed{Node: enginetest.Fakes(t), last: &enginetest.Policy{}}
	p.Options.Policies = append(p.Options.Policies, p.last)
	p.img = p.AddImage("busybox", ocispec.ImageConfig{}, nil)
	p.Start()
	p.client = p.As(core.OwnerNomad)
	return p
}

func (p *policed) config(sandbox core.ID) core.ContainerConfig {
	return core.ContainerConfig{Key: "c", Sandbox: sandbox, Root: core.Root{Image: p.img.ID}, Spec: enginetest.Args("sleep")}
}

// step is one call, with the questions that it causes.
type step struct {
	asks []string
	call func(ctx context.Context) error
}

// life returns every verb that asks the policies.
func (p *policed) life() []step {
	limits := func() *specs.LinuxResources {
		shares := uint64(5)
		return &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}
	}
	return []step{
		{[]string{"create sandbox pod", "admit sandbox pod"}, func(ctx context.Context) (err error) {
			p.pod, err = p.client.CreateSandbox(ctx, core.SandboxConfig{Key: "pod", Namespaces: core.Namespaces{PID: core.Namespace{Mode: core.Shared}}})
			return err
		}},
		{[]string{"update sandbox pod"}, func(ctx context.Context) error { return p.client.UpdateSandbox(ctx, p.pod.ID, limits()) }},
		{[]string{"create container c", "adjust container c"}, func(ctx context.Context) (err error) {
			p.c, err = p.client.CreateContainer(ctx, p.config(p.pod.ID))
			return err
		}},
		{[]string{"start container c"}, func(ctx context.Context) error { return p.client.StartContainer(ctx, p.c.ID) }},
		{[]string{"exec container c", "adjust process c"}, func(ctx context.Context) error {
			_, _, err := p.client.Exec(ctx, p.c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"true"}}})
			return err
		}},
		{[]string{"update container c"}, func(ctx context.Context) error {
			_, err := p.client.UpdateContainer(ctx, p.c.ID, limits())
			return err
		}},
		{[]string{"pause container c"}, func(ctx context.Context) error { return p.client.PauseContainer(ctx, p.c.ID) }},
		{[]string{"resume container c"}, func(ctx context.Context) error { return p.client.ResumeContainer(ctx, p.c.ID) }},
		{[]string{"stop container c"}, func(ctx context.Context) error { return p.client.StopContainer(ctx, p.c.ID, engine.StopOptions{}) }},
		{[]string{"stop container c", "stop sandbox pod"}, func(ctx context.Context) error {
			return p.client.StopSandbox(ctx, p.pod.ID, engine.StopOptions{})
		}},
		{[]string{"stop container c", "stop sandbox pod", "stop container c", "remove container c", "remove sandbox pod"}, func(ctx context.Context) error {
			return p.client.RemoveSandbox(ctx, p.pod.ID, engine.RemoveOptions{})
		}},
		{[]string{"create sandbox task", "create container c", "admit sandbox task", "adjust container c"}, func(ctx context.Context) (err error) {
			p.two, p.task, err = p.client.CreatePair(ctx, engine.Pair{
				Sandbox:   core.SandboxConfig{Key: "task"},
				Container: func(core.ID) (core.ContainerConfig, error) { cfg := p.config(""); cfg.Run = true; return cfg, nil },
			})
			return err
		}},
		{[]string{"stop container c", "remove container c"}, func(ctx context.Context) error {
			return p.client.RemoveContainer(ctx, p.task.ID, engine.RemoveOptions{Force: true})
		}},
		{[]string{"stop sandbox task", "remove sandbox task"}, func(ctx context.Context) error {
			return p.client.RemoveSandbox(ctx, p.two.ID, engine.RemoveOptions{Force: true})
		}},
	}
}

// TestPoliciesAreAskedAboutEveryVerb: a policy that the engine asks before a verb hears its result,
// the last one first.
func TestPoliciesAreAskedAboutEveryVerb(t *testing.T) {
	p := newPoliced(t)
	var told []string
	tells := func(name string) enginetest.Hooks {
		return enginetest.Hooks{Ended: func(context.Context, string) { told = append(told, name) }}
	}
	p.Policy.Does(tells("first"))
	p.last.Does(tells("last"))
	for _, s := range p.life() {
		if err := s.call(t.Context()); err != nil {
			t.Fatalf("%q: %v", s.asks, err)
		}
		p.Settle()
		for _, policy := range []*enginetest.Policy{p.Policy, p.last} {
			notes := policy.Notes()
			if got := enginetest.Asked(notes); !slices.Equal(got, s.asks) {
				t.Errorf("asked %q, want %q", got, s.asks)
			}
			open := map[string]int{}
			for _, n := range notes {
				if verb, ok := strings.CutSuffix(n, ": done"); ok {
					open[verb]--
				} else if !strings.HasPrefix(n, "admit ") && !strings.HasPrefix(n, "adjust ") {
					open[n]++
				}
			}
			for verb, n := range open {
				if n != 0 {
					t.Errorf("%s: %d more questions than ends in %q", verb, n, notes)
				}
			}
		}
		for i := 0; i < len(told); i += 2 {
			if i+1 == len(told) || told[i] != "last" || told[i+1] != "first" {
				t.Fatalf("%q: told %q", s.asks, told)
			}
		}
		told = nil
	}
	if left := p.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestARefusalUndoesEverything: when a policy refuses any of the questions, the call returns the
// error's class and leaves nothing, and the policies that allowed it hear of its end. Stops and
// removals continue.
func TestARefusalUndoesEverything(t *testing.T) {
	begun := newPoliced(t).life()
	for i, s := range begun {
		for _, question := range slices.Compact(slices.Clone(s.asks)) {
			t.Run(question+" of "+strings.Join(s.asks, ", "), func(t *testing.T) {
				p := newPoliced(t)
				life := p.life()
				for _, s := range life[:i] {
					if err := s.call(t.Context()); err != nil {
						t.Fatalf("%q: %v", s.asks, err)
					}
				}
				p.Settle()
				before := p.Left()
				p.Policy.Notes()
				p.last.Refuse(question)
				err := life[i].call(t.Context())
				p.Settle()
				p.Clean()
				if strings.HasPrefix(question, "stop") || strings.HasPrefix(question, "remove") {
					if err != nil {
						t.Errorf("an end was refused: %v", err)
					}
				} else {
					if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "policy: not here") {
						t.Errorf("answered %v", err)
					}
					if left := p.Left(); !slices.Equal(left, before) {
						t.Errorf("left %q, before %q", left, before)
					}
					notes := p.Policy.Notes()
					verbs := slices.DeleteFunc(enginetest.Asked(notes), func(n string) bool { return strings.HasPrefix(n, "admit ") || strings.HasPrefix(n, "adjust ") })
					for _, v := range verbs {
						if !slices.Contains(notes, v+": failed") {
							t.Errorf("nobody told of the end of %q: %q", v, notes)
						}
					}
					p.last.Refuse("")
					if err := life[i].call(t.Context()); err != nil {
						t.Errorf("the same call, allowed: %v", err)
					}
				}
				sweep(t, p.Node)
			})
		}
	}
}

// TestPoliciesChangeWhatRuns: the changes reach the runtime, and the caller's config stays
// unchanged.
func TestPoliciesChangeWhatRuns(t *testing.T) {
	p := newPoliced(t)
	shares := uint64(77)
	p.Policy.Does(enginetest.Hooks{
		Container: func(c *core.Container, spec *specs.Spec) {
			spec.Process.Env = append(spec.Process.Env, "FIRST=1")
			c.Warnings = append(c.Warnings, "changed")
		},
		Process: func(c *core.Container, proc *specs.Process) {
			proc.Args[0], proc.Env = "sleep", append(proc.Env, "OF="+string(c.Key))
			proc.Capabilities.Bounding = nil
		},
	})
	p.last.Does(enginetest.Hooks{
		Container: func(_ *core.Container, spec *specs.Spec) { spec.Process.Env = append(spec.Process.Env, "LAST=2") },
		Resources: &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}},
	})
	pod := p.Pod(core.OwnerNomad, "pod")
	c := p.Running(pod, "c", p.img, "sleep")
	if env := p.Runtime.Spec(c.ID).Process.Env; !slices.Equal(env, []string{"FIRST=1", "LAST=2"}) {
		t.Errorf("the runtime has env %q", env)
	}
	if !slices.Equal(c.Warnings, []string{"changed"}) {
		t.Errorf("warnings %q", c.Warnings)
	}
	own := &specs.Process{Args: []string{"other"}, Env: make([]string, 0, 4), Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}}}
	proc, _, err := p.client.Exec(t.Context(), c.ID, core.ProcessConfig{Spec: own})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Supervisor.Process(core.Ref{Container: c.ID, Process: proc.ID}); got.Args[0] != "sleep" || !slices.Equal(got.Env, []string{"OF=c"}) || proc.Args[0] != "sleep" {
		t.Errorf("runs %q with %q, recorded as %q", got.Args, got.Env, proc.Args)
	}
	if own.Args[0] != "other" || len(own.Env) > 0 || own.Env[:1][0] != "" || len(own.Capabilities.Bounding) != 1 {
		t.Errorf("the caller's own was changed: %+v", own)
	}
	asked := uint64(2)
	got, err := p.client.UpdateContainer(t.Context(), c.ID, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &asked}})
	if err != nil || *got.CPU.Shares != 77 {
		t.Errorf("limits %+v, %v", got, err)
	}
	sweep(t, p.Node)
}

// TestPoliciesCallVerbs: before and after a verb no lock is held, so that a policy may call
// verbs.
func TestPoliciesCallVerbs(t *testing.T) {
	p := newPoliced(t)
	pod := p.Pod(core.OwnerNomad, "pod")
	sibling := p.Running(pod, "sibling", p.img, "sleep")
	calls := 0
	call := func(ctx context.Context, about string) {
		if strings.HasPrefix(about, "adjust ") || strings.HasPrefix(about, "admit ") || strings.Contains(about, "container sibling") {
			return // a lock is held, or it is about this very call
		}
		calls++
		if _, err := p.client.UpdateContainer(ctx, sibling.ID, &specs.LinuxResources{}); err != nil {
			t.Errorf("%s: %v", about, err)
		}
	}
	p.Policy.Does(enginetest.Hooks{Asked: func(ctx context.Context, q string) error { call(ctx, q); return nil }, Ended: call})
	c := p.Running(pod, "c", p.img, "sleep")
	if _, _, err := p.client.Exec(t.Context(), c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"true"}}}); err != nil {
		t.Fatal(err)
	}
	if err := p.client.RemoveContainer(t.Context(), c.ID, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if want := 2 * len([]string{"create", "start", "exec", "stop", "remove"}); calls != want {
		t.Errorf("%d calls, want %d", calls, want)
	}
	p.Policy.Does(enginetest.Hooks{})
	sweep(t, p.Node)
}

// TestADeathTellsPoliciesNothing: neither a dead engine tells them, nor recovery, which undoes
// the incomplete operation.
func TestADeathTellsPoliciesNothing(t *testing.T) {
	p := newPoliced(t)
	crash := p.Crashes()
	p.Restart()
	pod := p.Pod(core.OwnerNomad, "pod")
	p.Policy.Notes()
	crash.At("create.launch")
	if _, err := p.As(core.OwnerNomad).CreateContainer(t.Context(), p.config(pod.ID)); !errors.Is(err, enginetest.ErrCrash) {
		t.Fatalf("the crash was not told: %v", err)
	}
	crash.At("")
	p.Restart()
	if got, want := p.Policy.Notes(), []string{"create container c", "adjust container c"}; !slices.Equal(got, want) {
		t.Errorf("noted %q, want %q", got, want)
	}
	sweep(t, p.Node)
}

// TestAPanicIsAnEnd, of a policy or of the verb. The policies before it hear of the end, and no
// lock stays held.
func TestAPanicIsAnEnd(t *testing.T) {
	p := newPoliced(t)
	pod := p.Pod(core.OwnerNomad, "pod")
	p.Policy.Notes()
	p.last.Does(enginetest.Hooks{Asked: func(_ context.Context, question string) error {
		if question == "adjust container c" {
			panic("a mistake")
		}
		return nil
	}})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = p.client.CreateContainer(t.Context(), p.config(pod.ID))
	}()
	if got := p.Policy.Notes(); !slices.Contains(got, "create container c: failed") {
		t.Errorf("noted %q", got)
	}
	p.last.Does(enginetest.Hooks{})
	other := p.config(pod.ID)
	other.Key = "other"
	if _, err := p.client.CreateContainer(t.Context(), other); err != nil {
		t.Error(err)
	}
	p.Restart() // removes incomplete objects
	p.Clean()
	sweep(t, p.Node)
}
