package kata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/sysctl"
)

// record is the face's record of a container.
type record struct {
	// InitExec is the shim's exec id of the first process.
	InitExec string `json:"init_exec"`
	// Storages are mounted as long as the container exists.
	Storages []guest.Storage `json:"storages,omitempty"`
	// TerminationFile is where the container writes why it ended.
	TerminationFile string `json:"termination_file,omitempty"`
	// PCI are the addresses of its devices in the machine, by those of the host.
	PCI map[string]string `json:"pci,omitempty"`
	// Capabilities are those of the container's first process. Execs without any have them too.
	Capabilities *specs.LinuxCapabilities `json:"capabilities,omitempty"`
}

// CreateContainer implements katav1.AgentServiceService.
func (s *service) CreateContainer(ctx context.Context, req *katav1.CreateContainerRequest) (*emptypb.Empty, error) {
	if err := checkID("container", req.GetContainerId()); err != nil {
		return nil, err
	}
	if req.GetExecId() != "" {
		if err := checkID("exec", req.GetExecId()); err != nil {
			return nil, err
		}
	}
	sb, err := s.face.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	if err := unserved(req); err != nil {
		return nil, err
	}
	spec, err := toSpec(req.GetOCI())
	if err != nil {
		return nil, err
	}
	stayInShare(spec.Mounts)
	mounts, err := storages(req.GetStorages())
	if err != nil {
		return nil, err
	}
	addHooks(spec, s.face.guestHooks())
	pci, err := s.face.useDevices(ctx, spec, req.GetDevices())
	if err != nil {
		return nil, err
	}
	if err := s.face.o.CDI.Inject(ctx, spec); err != nil {
		return nil, err
	}
	// Shared storages outlive the container: the sandbox releases them.
	own := slices.DeleteFunc(slices.Clone(mounts), func(m guest.Storage) bool { return m.Shared })
	data, err := json.Marshal(record{InitExec: req.GetExecId(), Storages: own, TerminationFile: terminationFile(spec), PCI: pci, Capabilities: spec.Process.Capabilities})
	if err != nil {
		return nil, err
	}
	cfg := core.ContainerConfig{
		Key: core.Key(req.GetContainerId()), Data: data, Sandbox: sb.ID, HookID: req.GetContainerId(),
		Root: core.Root{Dir: spec.Root.Path, Below: trusted(spec.Root.Path), ReadOnly: spec.Root.Readonly},
		IO:   core.IO{Hold: true, TTY: spec.Process.Terminal, Stdin: core.StdinOpen, Size: sizeOf(spec.Process.ConsoleSize)},
		Spec: func(_ context.Context, r core.Rootfs) (*specs.Spec, []byte, error) {
			return spec, nil, mainUser(spec.Process, req.GetStringUser(), r.FS, spec.Mounts)
		},
	}
	if req.GetSandboxPidns() {
		if cfg.Join, err = s.face.sharedPids(&sb); err != nil {
			return nil, err
		}
	}
	if err := s.face.setSysctls(spec); err != nil {
		return nil, err
	}
	wires, err := s.face.wires(ctx, req)
	if err != nil {
		return nil, err
	}
	mounted, err := s.face.mountAll(ctx, mounts)
	if err != nil {
		wires.close()
		return nil, err
	}
	ct, err := s.face.create(ctx, cfg, wires)
	if err != nil {
		s.face.unmountAll(ctx, mounted)
		return nil, err
	}
	s.face.ooms.watch(ctx, &ct)
	s.face.making.Lock()
	defer s.face.making.Unlock()
	for _, m := range mounted {
		if m.Shared {
			s.face.mounted = append(s.face.mounted, m)
		}
	}
	return &emptypb.Empty{}, nil
}

// create makes a container. A program that cannot be executed fails the call, as in the reference: for
// the shim a container that has been created runs until it reports an end, so a start that fails would
// leave one that cannot be removed.
func (f *Face) create(ctx context.Context, cfg core.ContainerConfig, wires *wires) (core.Container, error) {
	ct, err := f.o.Engine.CreateContainer(ctx, cfg)
	if err != nil {
		wires.close()
		return ct, err
	}
	if ct.Refused != nil {
		wires.close()
		err = errors.New(ct.Refused.Text)
	} else if wires != nil {
		err = f.connect(ctx, wires, string(cfg.Key), &ct.Main, core.Ref{Container: ct.ID, Process: core.Main})
	}
	if err == nil {
		return ct, nil
	}
	f.outs.drop(core.Ref{Container: ct.ID})
	return ct, errors.Join(err, f.o.Engine.RemoveContainer(context.WithoutCancel(ctx), ct.ID, engine.RemoveOptions{Force: true, Request: request("CreateContainer", 0)}))
}

// setSysctls sets the network's sysctls of a container on the machine and takes them out of the spec:
// containers have the machine's network.
func (f *Face) setSysctls(spec *specs.Spec) error {
	settings, err := sysctl.ParseAll(spec.Linux.Sysctl)
	if err != nil {
		return err
	}
	set := f.o.SetSysctl
	if set == nil {
		set = sysctl.Setting.Set
	}
	spec.Linux.Sysctl = maps.Clone(spec.Linux.Sysctl) // the request's
	for _, s := range settings {
		if s.Kind != specs.NetworkNamespace {
			continue
		}
		if err := set(s); err != nil {
			return err
		}
		delete(spec.Linux.Sysctl, s.Name)
	}
	return nil
}

// unserved refuses settings that this agent does not serve.
func unserved(req *katav1.CreateContainerRequest) error {
	switch {
	case len(req.GetSharedMounts()) > 0:
		return refuse(codes.Unimplemented, "shared mounts are not served")
	case hasGrants(req.GetOCI()):
		return refuse(codes.Unimplemented, "annotation %s: a guest's agent grants nothing; an ordinary container would get more than its document says", core.GrantAnnotation)
	case hasUserNamespace(req.GetOCI().GetLinux()):
		return refuse(codes.Unimplemented, "namespace user: not served; the container's users are those of the guest")
	}
	return nil
}

func hasUserNamespace(l *katav1.Linux) bool {
	return len(l.GetUIDMappings())+len(l.GetGIDMappings()) > 0 ||
		slices.ContainsFunc(l.GetNamespaces(), func(n *katav1.LinuxNamespace) bool { return n.GetType() == string(specs.UserNamespace) })
}

// trusted returns the directory below which no link of a path is followed, "" for a path outside of the host's share.
// The host can make links there, and so can a container that has a part of it.
func trusted(path string) string {
	if rel, ok := beneath.Rel(guest.Shared, path); !ok || rel == "." {
		return ""
	}
	return guest.Shared
}

// stayInShare makes the sources of mounts that the host shares stay below its directory.
func stayInShare(mounts []specs.Mount) {
	for i := range mounts {
		m := &mounts[i]
		m.Options = slices.DeleteFunc(slices.Clone(m.Options), ocispec.IsBelowOption) // only the agent decides
		if base := trusted(m.Source); base != "" {
			m.Options = append(m.Options, ocispec.BelowOption(base))
		}
	}
}

func hasGrants(s *katav1.Spec) bool {
	_, ok := s.GetAnnotations()[core.GrantAnnotation]
	return ok
}

func sizeOf(b *specs.Box) core.Size {
	if b == nil {
		return core.Size{}
	}
	return core.Size{Cols: uint16(min(b.Width, 65535)), Rows: uint16(min(b.Height, 65535))}
}

// sharedPids is how a container joins the pid namespace of the sandbox: that of the
// sandbox's own init, which the engine sees to, or else of the first container, which
// then gets a new one.
func (f *Face) sharedPids(sb *core.Sandbox) ([]core.Join, error) {
	if sb.Config.Namespaces.PID.Mode == core.Shared {
		return nil, nil
	}
	list, err := f.o.Engine.Stored.ContainersOf(sb.ID)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return []core.Join{{Namespace: specs.PIDNamespace, Container: list[0].ID}}, nil
}

// StartContainer implements katav1.AgentServiceService.
func (s *service) StartContainer(ctx context.Context, req *katav1.StartContainerRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, s.face.o.Engine.StartContainer(ctx, ct.ID)
}

// RemoveContainer implements katav1.AgentServiceService. After the timeout the removal continues,
// and the next call finds it done or joins it.
func (s *service) RemoveContainer(ctx context.Context, req *katav1.RemoveContainerRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	removed := make(chan error, 1)
	go func() {
		unlock, err := s.face.removals.Lock(context.WithoutCancel(ctx), ct.ID)
		if err != nil {
			removed <- err
			return
		}
		defer unlock()
		if _, err := s.face.o.Engine.Container(ctx, ct.ID); errdefs.IsNotFound(err) {
			removed <- nil // another call has removed it meanwhile
			return
		}
		err = s.face.o.Engine.RemoveContainer(context.WithoutCancel(ctx), ct.ID, engine.RemoveOptions{Force: true, Request: request("RemoveContainer", 0)})
		if err == nil {
			s.face.gone(&ct)
		}
		removed <- err
	}()
	var late <-chan time.Time
	if t := req.GetTimeout(); t > 0 {
		timer := time.NewTimer(time.Duration(t) * time.Second)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case err := <-removed:
		return &emptypb.Empty{}, err
	case <-late:
		return nil, refuse(codes.Internal, "remove container: %s: a process of it cannot be killed yet", syscall.ETIME.Error())
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// gone releases the resources of a removed container.
func (f *Face) gone(ct *core.Container) {
	f.outs.drop(core.Ref{Container: ct.ID})
	f.unmountAll(context.Background(), recordOf(ct).Storages)
}

// ExecProcess implements katav1.AgentServiceService.
func (s *service) ExecProcess(ctx context.Context, req *katav1.ExecProcessRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := checkID("exec", req.GetExecId()); err != nil {
		return nil, err
	}
	if initExec(&ct) == req.GetExecId() {
		return nil, fmt.Errorf("exec %q: %w", req.GetExecId(), errdefs.ErrAlreadyExists)
	}
	p, err := toProcess(req.GetProcess())
	if err != nil {
		return nil, err
	}
	if p.Capabilities == nil {
		p.Capabilities = recordOf(&ct).Capabilities
	}
	if err := execUser(p, req.GetStringUser(), ct.Main.Pid); err != nil {
		return nil, err
	}
	setPCIAddresses(p.Env, recordOf(&ct).PCI)
	wires, err := s.face.wires(ctx, req)
	if err != nil {
		return nil, err
	}
	made, _, err := s.face.o.Engine.Exec(ctx, ct.ID, core.ProcessConfig{
		ID: core.ProcessID(req.GetExecId()), Spec: p, Ephemeral: true, KeepExit: true,
		IO: core.IO{Hold: true, TTY: p.Terminal, Stdin: core.StdinOpen, Size: sizeOf(p.ConsoleSize)},
	})
	if err != nil {
		wires.close()
		return nil, err
	}
	if wires == nil {
		return &emptypb.Empty{}, nil
	}
	ref := core.Ref{Container: ct.ID, Process: made.ID}
	if err := s.face.connect(ctx, wires, req.GetContainerId(), &made, ref); err != nil {
		kill := s.face.o.Engine.Signal(context.WithoutCancel(ctx), ref, int(syscall.SIGKILL), request("ExecProcess", int(syscall.SIGKILL)))
		return nil, errors.Join(err, kill)
	}
	return &emptypb.Empty{}, nil
}

// SignalProcess implements katav1.AgentServiceService.
func (s *service) SignalProcess(ctx context.Context, req *katav1.SignalProcessRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	sig := int(req.GetSignal() & 0x7f)
	if req.GetSignal() > 64 {
		return nil, refuse(codes.InvalidArgument, "signal %d: there are 1 to 64", req.GetSignal())
	}
	if req.GetExecId() == "" && sig == int(syscall.SIGKILL) {
		return &emptypb.Empty{}, s.face.o.Engine.KillContainer(ctx, ct.ID, request("SignalProcess", sig))
	}
	p, err := s.face.process(&ct, req.GetExecId())
	if err != nil {
		return nil, err
	}
	if p.ID == core.Main && sig == int(syscall.SIGTERM) && heedless(p.Pid, sig) {
		sig = int(syscall.SIGKILL)
	}
	err = s.face.o.Engine.Signal(ctx, core.Ref{Container: ct.ID, Process: p.ID}, sig, request("SignalProcess", sig))
	if errdefs.IsNotFound(err) { // it has ended meanwhile, as the caller wants
		err = nil
	}
	return &emptypb.Empty{}, err
}

func request(call string, sig int) core.StopRequest {
	return core.StopRequest{Owner: core.OwnerKata, Call: call, Signal: sig, At: time.Now()}
}

// heedless reports whether a process has not arranged for a signal in any way. The first
// process of a pid namespace never gets such a signal, so nothing would happen.
func heedless(pid, sig int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	seen := 0
	for line := range strings.Lines(string(b)) {
		name, hex, ok := strings.Cut(line, ":")
		if !ok || name != "SigBlk" && name != "SigIgn" && name != "SigCgt" {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil || set&(1<<(sig-1)) != 0 {
			return false
		}
		seen++
	}
	return seen == 3
}

// WaitProcess implements katav1.AgentServiceService. Every waiter gets the status; an exec with its
// output taken is then forgotten, except for its status.
func (s *service) WaitProcess(ctx context.Context, req *katav1.WaitProcessRequest) (*katav1.WaitProcessResponse, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	p, err := s.face.process(&ct, req.GetExecId())
	if err != nil {
		// Another waiter may have had the process forgotten.
		a, kerr := s.face.o.Engine.KeptExit(ctx, core.Ref{Container: ct.ID, Process: core.ProcessID(req.GetExecId())})
		if kerr == nil {
			return statusOf(a), nil
		}
		return nil, err
	}
	ref := core.Ref{Container: ct.ID, Process: p.ID}
	a, err := s.face.o.Engine.Wait(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := s.face.outs.copied(ctx, ref); err != nil {
		return nil, err
	}
	if p.ID != core.Main && s.face.outs.read(ref) {
		if err := s.face.o.Engine.RemoveProcess(ctx, ref, engine.RemoveOptions{}); err != nil {
			s.face.o.Logger.WarnContext(ctx, "could not forget an exec that has ended", "error", err)
		}
		s.face.outs.drop(ref)
	}
	return statusOf(a), nil
}

func statusOf(a core.Autopsy) *katav1.WaitProcessResponse {
	return &katav1.WaitProcessResponse{Status: int32(a.Exit.Status())}
}

// UpdateContainer implements katav1.AgentServiceService.
func (s *service) UpdateContainer(ctx context.Context, req *katav1.UpdateContainerRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	if res := toResources(req.GetResources()); res != nil {
		_, err = s.face.o.Engine.UpdateContainer(ctx, ct.ID, res)
	}
	return &emptypb.Empty{}, err
}

// PauseContainer implements katav1.AgentServiceService.
func (s *service) PauseContainer(ctx context.Context, req *katav1.PauseContainerRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	err = s.face.o.Engine.PauseContainer(ctx, ct.ID)
	if err == nil && s.face.o.Paused != nil {
		s.face.o.Paused(ctx, ct.Cgroup)
	}
	return &emptypb.Empty{}, err
}

// ResumeContainer implements katav1.AgentServiceService.
func (s *service) ResumeContainer(ctx context.Context, req *katav1.ResumeContainerRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	return &emptypb.Empty{}, s.face.o.Engine.ResumeContainer(ctx, ct.ID)
}

// GetOOMEvent implements katav1.AgentServiceService.
func (s *service) GetOOMEvent(ctx context.Context, _ *katav1.GetOOMEventRequest) (*katav1.OOMEvent, error) {
	id, err := s.face.ooms.next(ctx, s.face.destroyed)
	if err != nil {
		return nil, err
	}
	return &katav1.OOMEvent{ContainerId: id}, nil
}

// container finds a container by the shim's id; NotFound when there is none.
func (f *Face) container(ctx context.Context, id string) (core.Container, error) {
	ct, err := f.o.Engine.ContainerByKey(ctx, core.Key(id))
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("invalid container id %q: %w", clip(id), errdefs.ErrNotFound)
	}
	return ct, err
}

// process finds a process by the shim's exec id. One that is not there is gone, for the
// shim: NOT_FOUND.
func (f *Face) process(ct *core.Container, exec string) (*core.Process, error) {
	if exec == "" || exec == initExec(ct) {
		return &ct.Main, nil
	}
	p := ct.Process(core.ProcessID(exec))
	if p == nil {
		return nil, refuse(codes.NotFound, "there is no process %q", clip(exec))
	}
	return p, nil
}

// initExec returns the shim's exec id of a container's first process.
func initExec(ct *core.Container) string { return recordOf(ct).InitExec }

func recordOf(ct *core.Container) (r record) {
	if err := json.Unmarshal(ct.Data, &r); err != nil {
		return record{} // nobody else writes it
	}
	return r
}

var errEnding = errors.New("the sandbox was destroyed")
