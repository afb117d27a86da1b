package kata

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAContainerAsTheShimRunsIt makes the calls of a recorded run of Kata's shim, in
// their order.
func TestAContainerAsTheShimRunsIt(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		if r, err := a.health.Check(t.Context(), &katav1.CheckRequest{}); err != nil || r.GetStatus() != katav1.HealthCheckResponse_SERVING {
			t.Fatalf("Check: %v, %v", r, err)
		}
		if r, err := a.health.Version(t.Context(), &katav1.CheckRequest{}); err != nil || r.GetAgentVersion() == "" {
			t.Errorf("Version: %v, %v", r, err)
		}
		a.sandbox(t)
		if r, err := a.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{MemBlockSize: true, MemHotplugProbe: true}); err != nil || r.GetAgentDetails().GetInitDaemon() {
			t.Fatalf("GetGuestDetails: %v, %v", r, err)
		}
		a.run(t, "c1", a.spec(`read line; echo "out $line"; echo err >&2; hostname; df -P /dev/shm | tail -1; exit 42`))
		if _, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "c1", ExecId: "c1", Data: []byte("hello\n")}); err != nil {
			t.Fatalf("WriteStdin: %v", err)
		}
		var errs string
		var both sync.WaitGroup
		both.Go(func() { errs = a.stderr(t, "c1", "c1") })
		out := a.stdout(t, "c1", "c1")
		both.Wait()
		if !strings.HasPrefix(out, "out hello\nguest\n") || !strings.Contains(out, "65536") || errs != "err\n" {
			t.Errorf("stdout %q, stderr %q", out, errs)
		}
		if got := a.wait(t, "c1", "c1"); got != 42 {
			t.Errorf("status %d, want 42", got)
		}
		if _, err := a.SignalProcess(t.Context(), &katav1.SignalProcessRequest{ContainerId: "c1", Signal: 9}); err != nil {
			t.Errorf("SIGKILL to all after the end: %v", err)
		}
		if got := a.wait(t, "c1", "c1"); got != 42 {
			t.Errorf("second WaitProcess: status %d, want 42", got)
		}
		a.remove(t, "c1")
		if _, err := a.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
			t.Fatalf("DestroySandbox: %v", err)
		}
		if err := <-a.ended; err != nil {
			t.Errorf("after DestroySandbox the agent ended with %v", err)
		}
		a.ended <- nil // for the cleanup
		if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), a.state) || strings.Contains(string(b), "kata-containers") {
			t.Errorf("mounts are left: %v\n%s", err, b)
		}
	})
}

// TestProcessesOfAContainer: execs, terminals, signals, and output beside a child that
// holds the pipe.
func TestProcessesOfAContainer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		a.run(t, "c1", a.spec("sleep 1000"))
		exec := func(t *testing.T, id string, tty bool, script string) {
			t.Helper()
			p := a.spec(script).GetProcess()
			p.Terminal = tty
			if _, err := a.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: id, Process: p}); err != nil {
				t.Fatalf("ExecProcess: %v", err)
			}
		}
		t.Run("a child that holds the pipe holds up nobody", func(t *testing.T) {
			exec(t, "e1", false, "sleep 1000 & echo last; exit 3")
			if got := a.stdout(t, "c1", "e1"); got != "last\n" {
				t.Errorf("stdout %q", got)
			}
			_ = a.stderr(t, "c1", "e1")
			if got := a.wait(t, "c1", "e1"); got != 3 {
				t.Errorf("status %d, want 3", got)
			}
		})
		t.Run("every waiter gets the status", func(t *testing.T) {
			exec(t, "e2", false, "read x; exit 5")
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					r, err := a.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: "e2"})
					if err != nil || r.GetStatus() != 5 {
						t.Errorf("WaitProcess: %v, %v", r, err)
					}
				})
			}
			if _, err := a.CloseStdin(t.Context(), &katav1.CloseStdinRequest{ContainerId: "c1", ExecId: "e2"}); err != nil {
				t.Errorf("CloseStdin: %v", err)
			}
			all.Wait()
		})
		t.Run("a terminal", func(t *testing.T) {
			exec(t, "e3", true, "read x; stty size; exit 0")
			if _, err := a.TtyWinResize(t.Context(), &katav1.TtyWinResizeRequest{ContainerId: "c1", ExecId: "e3", Row: 33, Column: 77}); err != nil {
				t.Errorf("TtyWinResize: %v", err)
			}
			if _, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "c1", ExecId: "e3", Data: []byte("x\n")}); err != nil {
				t.Errorf("WriteStdin: %v", err)
			}
			if got := a.stdout(t, "c1", "e3"); !strings.Contains(got, "33 77") {
				t.Errorf("stdout %q", got)
			}
			_, err := a.TtyWinResize(t.Context(), &katav1.TtyWinResizeRequest{ContainerId: "c1", ExecId: "c1", Row: 1, Column: 1})
			if status.Code(err) != codes.Unavailable {
				t.Errorf("TtyWinResize without a terminal: %v", err)
			}
		})
		t.Run("SIGTERM ends a first process that does not heed it", func(t *testing.T) {
			a.run(t, "c2", a.spec("exec sleep 1000"))
			if _, err := a.SignalProcess(t.Context(), &katav1.SignalProcessRequest{ContainerId: "c2", ExecId: "c2", Signal: 15}); err != nil {
				t.Errorf("SignalProcess: %v", err)
			}
			if got := a.wait(t, "c2", "c2"); got != 137 {
				t.Errorf("status %d, want 137", got)
			}
		})
		t.Run("SIGTERM reaches one that does", func(t *testing.T) {
			a.run(t, "c3", a.spec("trap 'exit 7' TERM; echo ready; while :; do sleep 1; done"))
			if r, err := a.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "c3", ExecId: "c3", Len: 100}); err != nil || string(r.GetData()) != "ready\n" {
				t.Fatalf("ReadStdout: %v, %v", r, err)
			}
			if _, err := a.SignalProcess(t.Context(), &katav1.SignalProcessRequest{ContainerId: "c3", ExecId: "c3", Signal: 15}); err != nil {
				t.Errorf("SignalProcess: %v", err)
			}
			if got := a.wait(t, "c3", "c3"); got != 7 {
				t.Errorf("status %d, want 7", got)
			}
		})
		t.Run("usage, limits, pause", func(t *testing.T) {
			limit := int64(64 << 20)
			if _, err := a.UpdateContainer(t.Context(), &katav1.UpdateContainerRequest{ContainerId: "c1", Resources: &katav1.LinuxResources{Memory: &katav1.LinuxMemory{Limit: limit}}}); err != nil {
				t.Errorf("UpdateContainer: %v", err)
			}
			r, err := a.StatsContainer(t.Context(), &katav1.StatsContainerRequest{ContainerId: "c1"})
			if err != nil || r.GetCgroupStats().GetMemoryStats().GetUsage().GetLimit() != uint64(limit) || r.GetCgroupStats().GetCpuStats().GetCpuUsage().GetTotalUsage() == 0 || r.GetCgroupStats().GetPidsStats().GetCurrent() == 0 {
				t.Errorf("StatsContainer: %v, %v", r, err)
			}
			if _, err := a.PauseContainer(t.Context(), &katav1.PauseContainerRequest{ContainerId: "c1"}); err != nil {
				t.Errorf("PauseContainer: %v", err)
			}
			if _, err := a.PauseContainer(t.Context(), &katav1.PauseContainerRequest{ContainerId: "c1"}); status.Code(err) != codes.Internal {
				t.Errorf("PauseContainer of a paused one: %v", err)
			}
			if _, err := a.ResumeContainer(t.Context(), &katav1.ResumeContainerRequest{ContainerId: "c1"}); err != nil {
				t.Errorf("ResumeContainer: %v", err)
			}
		})
		t.Run("a container joins the first one's processes", func(t *testing.T) {
			if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c4", ExecId: "c4", OCI: a.spec("ps"), SandboxPidns: true}); err != nil {
				t.Fatalf("CreateContainer: %v", err)
			}
			if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "c4"}); err != nil {
				t.Fatalf("StartContainer: %v", err)
			}
			if got := a.stdout(t, "c4", "c4"); !strings.Contains(got, "sleep 1000") {
				t.Errorf("ps shows %q", got)
			}
		})
	})
}

// TestTheAgentIsTheLastToBeKilled: when memory runs out, the kernel kills containers before the agent and its
// processes. A process with a raised score is the control that containers do not inherit it.
func TestTheAgentIsTheLastToBeKilled(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const score = "/proc/self/oom_score_adj"
		before, err := os.ReadFile(score)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(score, []byte("300"), 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.WriteFile(score, before, 0) })
		a := start(t)
		want := "-997"
		if err := os.WriteFile(score, []byte(want), 0); err != nil {
			want = "300" // the agent may not lower it either
		}
		a.sandbox(t)
		for name, set := range map[string]int64{"c1": 0, "c2": 500} {
			spec := a.spec("cat /proc/self/oom_score_adj")
			spec.Process.OOMScoreAdj = set
			a.run(t, name, spec)
			if got := a.stdout(t, name, name); got != fmt.Sprintln(set) {
				t.Errorf("a container with %d has %q", set, got)
			}
		}
		for _, program := range []string{"longshore-guest", "longshore-keeper"} {
			found, err := exec.CommandContext(t.Context(), "pidof", program).Output() // in the test's own namespace of pids
			if err != nil || len(strings.Fields(string(found))) == 0 {
				t.Fatalf("%s: %q, %v", program, found, err)
			}
			for _, pid := range strings.Fields(string(found)) {
				if b, err := os.ReadFile("/proc/" + pid + "/oom_score_adj"); err != nil || strings.TrimSpace(string(b)) != want {
					t.Errorf("%s has %q, want %s (%v)", program, b, want, err)
				}
			}
		}
	})
}
