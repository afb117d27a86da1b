package client

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// container checks a container's input, outputs, copied file and termination message.
func (s *shim) container(t *testing.T) {
	why := filepath.Join(t.TempDir(), "why")
	if err := os.WriteFile(why, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	spec := s.spec(`hostname; cat /etc/hosts; echo problem >&2; while read line; do echo "got $line"; done; echo "input ended" > /why; exit 42`,
		&pb.Mount{Destination: "/etc/hosts", Type: "bind", Source: shared + "/c1/hosts", Options: []string{"rbind", "ro"}},
		&pb.Mount{Destination: "/why", Type: "bind", Source: why, Options: []string{"rbind"}})
	for _, name := range []string{"etc/hosts", "why"} {
		if err := os.WriteFile(filepath.Join(s.root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	spec.Annotations = map[string]string{"io.kubernetes.container.terminationMessagePath": "/why"}
	s.started("c1", spec)
	s.write("c1", "c1", "one\ntwo\n")
	s.ok("CloseStdin", &pb.CloseStdinRequest{ContainerId: "c1", ExecId: "c1"})
	if out := s.output("ReadStdout", "c1", "c1"); out != "guest\n127.0.0.1 localhost\n192.0.2.2 guest\ngot one\ngot two\n" {
		t.Errorf("stdout is %q", out)
	}
	if out := s.output("ReadStderr", "c1", "c1"); out != "problem\n" {
		t.Errorf("stderr is %q", out)
	}
	if got := s.status("c1", "c1"); got != 42 {
		t.Errorf("status %d, want 42", got)
	}
	if got := answer[*pb.GetDiagnosticDataResponse](s, "GetDiagnosticData", &pb.GetDiagnosticDataRequest{LogType: "termination_log", ContainerId: "c1"}).GetData(); got != "input ended\n" {
		t.Errorf("GetDiagnosticData answers %q", got)
	}
	s.ok("RemoveContainer", &pb.RemoveContainerRequest{ContainerId: "c1", Timeout: 10})
	s.refused(codes.Internal, "invalid container id", "RemoveContainer", &pb.RemoveContainerRequest{ContainerId: "c1"})
}

// processes of a container: on a terminal and not, and how signals end them.
func (s *shim) processes(t *testing.T) {
	s.started("c2", s.spec("sleep 10000"))
	terminal := process("read x; stty size; exit 5")
	terminal.Terminal = true
	s.ok("ExecProcess", &pb.ExecProcessRequest{ContainerId: "c2", ExecId: "e1", Process: terminal})
	s.ok("TtyWinResize", &pb.TtyWinResizeRequest{ContainerId: "c2", ExecId: "e1", Row: 33, Column: 77})
	s.write("c2", "e1", "\n")
	if out := s.output("ReadStdout", "c2", "e1"); !strings.Contains(out, "33 77") {
		t.Errorf("the terminal shows %q", out)
	}
	if got := s.status("c2", "e1"); got != 5 {
		t.Errorf("status %d, want 5", got)
	}
	s.refused(codes.Unavailable, "no tty", "TtyWinResize", &pb.TtyWinResizeRequest{ContainerId: "c2", ExecId: "c2", Row: 1, Column: 1})
	for exec, signal := range map[string]uint32{"e15": 15, "e9": 9} {
		s.ok("ExecProcess", &pb.ExecProcessRequest{ContainerId: "c2", ExecId: exec, Process: process("exec sleep 10000")})
		s.ok("SignalProcess", &pb.SignalProcessRequest{ContainerId: "c2", ExecId: exec, Signal: signal})
		if got := s.status("c2", exec); got != int32(128+signal) {
			t.Errorf("status %d after signal %d", got, signal)
		}
	}
	s.refused(codes.NotFound, "no process", "SignalProcess", &pb.SignalProcessRequest{ContainerId: "c2", ExecId: "none", Signal: 15})
	s.refused(codes.InvalidArgument, "invalid container id", "SignalProcess", &pb.SignalProcessRequest{ContainerId: "none", Signal: 15})
}

// limits of the container that runs: its usage, another limit, and a pause.
func (s *shim) limits(t *testing.T) {
	const limit = 96 << 20
	s.ok("UpdateContainer", &pb.UpdateContainerRequest{ContainerId: "c2", Resources: &pb.LinuxResources{Memory: &pb.LinuxMemory{Limit: limit}}})
	u := answer[*pb.StatsContainerResponse](s, "StatsContainer", &pb.StatsContainerRequest{ContainerId: "c2"}).GetCgroupStats()
	if u.GetMemoryStats().GetUsage().GetLimit() != limit || u.GetMemoryStats().GetUsage().GetUsage() == 0 || u.GetCpuStats().GetCpuUsage().GetTotalUsage() == 0 || u.GetPidsStats().GetCurrent() == 0 {
		t.Errorf("StatsContainer answers %v", u)
	}
	// A process that counts by its end stands still while the container is paused.
	s.ok("ExecProcess", &pb.ExecProcessRequest{ContainerId: "c2", ExecId: "tick", Process: process("while read x; do echo $x; done")})
	s.ok("PauseContainer", &pb.PauseContainerRequest{ContainerId: "c2"})
	s.write("c2", "tick", "tock\n")
	s.refused(codes.Internal, "", "PauseContainer", &pb.PauseContainerRequest{ContainerId: "c2"})
	if s.kernel != nil && !s.frozen() {
		t.Error("the container's cgroup is not frozen")
	}
	s.ok("ResumeContainer", &pb.ResumeContainerRequest{ContainerId: "c2"})
	if s.kernel != nil && s.frozen() {
		t.Error("the container's cgroup is still frozen")
	}
	s.ok("CloseStdin", &pb.CloseStdinRequest{ContainerId: "c2", ExecId: "tick"})
	if out := s.output("ReadStdout", "c2", "tick"); out != "tock\n" {
		t.Errorf("the process says %q", out)
	}
	s.ok("SignalProcess", &pb.SignalProcessRequest{ContainerId: "c2", Signal: 9})
	if got := s.status("c2", "c2"); got != 137 {
		t.Errorf("status %d, want 137", got)
	}
	s.ok("RemoveContainer", &pb.RemoveContainerRequest{ContainerId: "c2"})
}

// frozen reports whether one of the agent's cgroups is, by the kernel's own word for it on
// v1 and on v2.
func (s *shim) frozen() (yes bool) {
	s.t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/freezer"} {
		err := filepath.WalkDir(root+s.cgroup, func(path string, d fs.DirEntry, err error) error {
			if name := filepath.Base(path); err == nil && (name == "freezer.state" || name == "cgroup.events") {
				b, rerr := os.ReadFile(path)
				yes = yes || rerr == nil && (strings.Contains(string(b), "FROZEN") || strings.Contains(string(b), "frozen 1"))
			}
			return nil // a missing file is not frozen
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return yes
}

// volumes of a container: one is remounted with another size, and grows.
func (s *shim) volumes(t *testing.T) {
	at := filepath.Join(t.TempDir(), "cache")
	cache := &pb.Storage{Driver: "ephemeral", Source: "tmpfs", Fstype: "tmpfs", MountPoint: at, Options: []string{"size=1048576"}}
	if err := os.MkdirAll(filepath.Join(s.root, "cache"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.started("c3", s.spec("read x; df /cache | tail -n 1", &pb.Mount{Destination: "/cache", Type: "bind", Source: at, Options: []string{"rbind"}}), cache)
	if got := bytesOf(t, at); got != 1<<20 {
		t.Errorf("the volume has %d bytes", got)
	}
	cache.Options = []string{"remount", "size=2097152"}
	s.ok("UpdateEphemeralMounts", &pb.UpdateEphemeralMountsRequest{Storages: []*pb.Storage{cache}})
	if got := bytesOf(t, at); got != 2<<20 {
		t.Errorf("after UpdateEphemeralMounts the volume has %d bytes", got)
	}
	s.ok("ResizeVolume", &pb.ResizeVolumeRequest{VolumeGuestPath: at, Size: 4 << 20})
	if got := bytesOf(t, at); got != 4<<20 {
		t.Errorf("after ResizeVolume the volume has %d bytes", got)
	}
	s.refused(codes.Unimplemented, "cannot grow", "ResizeVolume", &pb.ResizeVolumeRequest{VolumeGuestPath: "/proc", Size: 1})
	s.ok("CloseStdin", &pb.CloseStdinRequest{ContainerId: "c3", ExecId: "c3"})
	if out := s.output("ReadStdout", "c3", "c3"); !strings.Contains(out, "4096") {
		t.Errorf("the container sees %q", out)
	}
	_ = s.status("c3", "c3")
	s.ok("RemoveContainer", &pb.RemoveContainerRequest{ContainerId: "c3"})
	if _, err := os.Stat(at); !os.IsNotExist(err) {
		t.Errorf("the volume is left: %v", err)
	}
}

// outOfMemory: the shim gets the id of the container that ran out of memory.
func (s *shim) outOfMemory(t *testing.T) {
	spec := s.spec("exec dd if=/dev/zero of=/dev/null bs=64M count=1")
	spec.Linux.Resources.Memory = &pb.LinuxMemory{Limit: 16 << 20}
	s.started("hog", spec)
	if got := s.status("hog", "hog"); got != 137 {
		t.Errorf("status %d, want 137: %s", got, s.output("ReadStderr", "hog", "hog"))
	}
	if got := answer[*pb.OOMEvent](s, "GetOOMEvent", &pb.GetOOMEventRequest{}).GetContainerId(); got != "hog" {
		t.Errorf("GetOOMEvent answers %q", got)
	}
	s.ok("RemoveContainer", &pb.RemoveContainerRequest{ContainerId: "hog"})
}

// policies: a guest that can evaluate them accepts Kata's own sample, and serves calls under it.
func (s *shim) policies(t *testing.T) {
	sample := content(t, filepath.Join(os.Getenv("KATA_SOURCE"), "src/kata-opa/allow-all.rego"))
	features := answer[*pb.GuestDetailsResponse](s, "GetGuestDetails", &pb.GuestDetailsRequest{}).GetAgentDetails().GetExtraFeatures()
	if !slices.Contains(features, "agent-policy") {
		s.refused(codes.Unimplemented, "longshore-policy", "SetPolicy", &pb.SetPolicyRequest{Policy: sample})
		return
	}
	s.refused(codes.InvalidArgument, "", "SetPolicy", &pb.SetPolicyRequest{Policy: "no policy"})
	s.ok("SetPolicy", &pb.SetPolicyRequest{Policy: sample})
	s.ok("GetGuestDetails", &pb.GuestDetailsRequest{})
}

func (s *shim) unserved(*testing.T) {
	s.refused(codes.Internal, "mem-agent is disabled", "MemAgentMemcgSet", &pb.MemAgentMemcgConfig{})
	s.refused(codes.Internal, "mem-agent is disabled", "MemAgentCompactSet", &pb.MemAgentCompactConfig{})
}

// end destroys the sandbox with a container in it: everything goes, and the agent too.
func (s *shim) end(t *testing.T) {
	s.started("c4", s.spec("sleep 10000"))
	told := make(chan error, 1)
	go func() {
		_, err := s.client.AgentServiceClient.GetOOMEvent(context.WithoutCancel(t.Context()), &pb.GetOOMEventRequest{})
		told <- err
	}()
	s.ok("DestroySandbox", &pb.DestroySandboxRequest{})
	if err := <-told; status.Code(err) == codes.OK {
		t.Error("GetOOMEvent told of a kill")
	}
	err := <-s.ended
	if s.ended <- nil; err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if got := content(t, "/etc/resolv.conf"); got != strings.TrimSpace(ownResolvConf) {
		t.Errorf("resolv.conf is %q", got)
	}
	if mounts := content(t, "/proc/self/mountinfo"); strings.Contains(mounts, "/run/kata-containers/sandbox") || strings.Contains(mounts, s.state) {
		t.Errorf("mounts are left:\n%s", mounts)
	}
	if n := command(t, "sh", "-c", "ps axo args | grep -c '[s]leep 10000' || true"); strings.TrimSpace(n) != "0" {
		t.Errorf("%s processes of containers are left", n)
	}
}
