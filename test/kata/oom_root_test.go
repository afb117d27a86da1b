package kata

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestKillsForMemory: each kill is one event, while the container runs and when it ends by one,
// also when the keeper was killed before.
func TestKillsForMemory(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		a.sandbox(t)
		events := make(chan string, 100)
		go func() {
			defer close(events)
			for {
				e, err := a.GetOOMEvent(t.Context(), &katav1.GetOOMEventRequest{})
				if err != nil {
					return
				}
				events <- e.GetContainerId()
			}
		}()
		hog := "dd if=/dev/zero of=/dev/null bs=256M count=1"
		run := func(id, script string) {
			t.Helper()
			spec := a.spec(script)
			spec.Linux.CgroupsPath = "/default/" + id
			spec.Linux.Resources.Memory = &katav1.LinuxMemory{Limit: 32 << 20}
			a.run(t, id, spec)
		}
		run("c1", "echo ready; read x; "+hog+"; echo $?; read x")
		run("c2", "sleep 1000")
		expect := func(id string) {
			t.Helper()
			select {
			case got := <-events:
				if got != id {
					t.Errorf("a kill in %q, want %s", got, id)
				}
			case <-time.After(roottest.Patience()):
				t.Fatalf("no kill was told in %s", id)
			}
		}
		says := func(want string) {
			t.Helper()
			if b, err := a.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "c1", ExecId: "c1", Len: 100}); err != nil || string(b.GetData()) != want {
				t.Fatalf("%q, %v", b.GetData(), err)
			}
		}
		// The memory of a killed process is freed by and by; meanwhile the next one that wants
		// memory, the shell too, would be killed.
		free := func() {
			t.Helper()
			nodetest.Eventually(t, "its memory is free again", func() bool {
				st, err := a.StatsContainer(t.Context(), &katav1.StatsContainerRequest{ContainerId: "c1"})
				return err == nil && st.GetCgroupStats().GetMemoryStats().GetUsage().GetUsage() < 8<<20
			})
		}
		says("ready\n")
		if _, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "c1", ExecId: "c1", Data: []byte("go\n")}); err != nil {
			t.Fatal(err)
		}
		expect("c1") // a child, and the container runs on
		says("137\n")
		free()
		if _, err := a.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: &katav1.Process{Args: strings.Fields("/bin/" + hog), Cwd: "/", User: &katav1.User{}}}); err != nil {
			t.Fatal(err)
		}
		expect("c1")
		if got := a.wait(t, "c1", "e1"); got != 137 {
			t.Errorf("the exec's status is %d", got)
		}
		keeper := func() []int { return nodetest.Pair("keeper") }
		free()
		before := keeper()
		if len(before) != 1 {
			t.Fatalf("keepers: %d", before)
		}
		if err := unix.Kill(before[0], unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "there is a keeper again", func() bool {
			now := keeper()
			return len(now) == 1 && now[0] != before[0]
		})
		run("c3", "exec "+hog)
		if got := a.wait(t, "c3", "c3"); got != 137 {
			t.Errorf("the status is %d", got)
		}
		expect("c3")
		gone := a.gone(t)
		if _, err := a.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
			t.Error(err)
		}
		for id := range events {
			t.Errorf("a kill too much, in %q", id)
		}
		<-gone
	})
}
