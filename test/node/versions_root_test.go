package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// release is a build of the node's programs with numbers of formats of its own, by the last lines of the files (internal/weaken).
type release struct{ name, marks string }

// install puts a release's programs in the place of the installed ones.
func (r release) install(t *testing.T, bin string) {
	t.Helper()
	for _, name := range []string{"longshore", "longshore-keeper"} {
		b, err := os.ReadFile(filepath.Join(nodetest.Weakened(t), name))
		if err != nil {
			t.Fatal(err)
		}
		install(t, filepath.Join(bin, name), append(b, fmt.Sprintf("\nlongshore-marks %s release=%s\n", r.marks, r.name)...))
	}
}

// TestVersionMatrix: three releases with other versions of the keeper's protocol replace each other under a running pod, up, down and up
// again, the agent and the keeper each. A release that cannot read a format of the node is refused by that format's name. The refusal
// changes nothing.
func TestVersionMatrix(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		before2, before, now := release{"1", "keeper=3"}, release{"2", "keeper=4"}, release{"3", ""}
		bin := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), "cp", "-r", nodetest.Weakened(t)+"/.", bin).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		before2.install(t, bin)
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("matrix"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", countsUntilTold))
		pid, keepers := n.Pid(), n.Processes("keeper")
		works := func(after string) {
			t.Helper()
			for _, name := range []string{"agent", "keeper"} {
				if s := processState(t, n, name); s != "current" {
					t.Errorf("%s: the %s is %q", after, name, s)
				}
			}
			r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/echo", "here"}, Timeout: 30})
			if err != nil || string(r.GetStdout()) != "here\n" || n.Pid() != pid || len(n.Processes("keeper")) != 1 || n.Processes("keeper")[0] != keepers[0] {
				t.Errorf("%s: %v, %v", after, r, err)
			}
		}
		for _, r := range []release{before, now, before, before2, now} {
			r.install(t, bin)
			if out, err := n.CLI("upgrade"); err != nil || !strings.Contains(out, "upgraded  agent\n") || !strings.Contains(out, "upgraded  keeper\n") {
				t.Errorf("to release %s: %q, %v", r.name, out, err)
			}
			works("release " + r.name)
		}
		refused := func(r release, says string) {
			t.Helper()
			r.install(t, bin)
			if out, err := n.CLI("upgrade"); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("release %s: %q, %v, want %q", r.name, out, err, says)
			}
			now.install(t, bin)
			works("refused release " + r.name)
		}
		refused(release{"other", "state-oldest=2 state=2"}, "reads format 2 of durable.db; this node has 1")
		refused(release{"other", "handover-oldest=5 handover=6"}, "reads the formats 5 to 6 of handover; this node has 1")
		refused(release{"other", "keeper-oldest=8 keeper=9"}, "it speaks the versions 8 to 9 of the keeper's protocol, and the running keeper")
		// A keeper alone, which reads another form of the state than the present one hands over.
		whole, err := os.ReadFile(filepath.Join(bin, "longshore-keeper"))
		if err != nil {
			t.Fatal(err)
		}
		install(t, filepath.Join(bin, "longshore-keeper"), append(whole, "\nlongshore-marks keeper-handover-oldest=2 keeper-handover=2\n"...))
		if out, err := n.CLI("upgrade"); err == nil || !strings.Contains(err.Error(), "hands its state over in form 1, and the next program reads the forms 2 to 2") {
			t.Errorf("a keeper with another handover: %q, %v", out, err)
		}
		now.install(t, bin)
		works("refused keeper")
		stopsWhole(t, n, c)
		pod.Remove(t)
		clean(t, n)
	})
}

// TestUpgradeByABadNameServer: if the next name server of sandboxes does not start, the one before continues to answer, and the upgrade
// tells the reason. The next upgrade replaces it.
func TestUpgradeByABadNameServer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := t.TempDir()
		release{"1", ""}.install(t, bin)
		n := nodetest.Start(t, nodetest.Options{Bin: bin, Config: "[network]\nmode = \"builtin\"\n"})
		image := n.Busybox(t)
		for _, args := range [][]string{{"network", "create", "near"}, {"run", "-d", "--init=false", "--network", "near", "--name", "db", image, "sleep", "100000"}} {
			if out, err := n.CLI(args...); err != nil {
				t.Fatalf("%v: %s, %v", args, out, err)
			}
		}
		answers := func(when string) {
			t.Helper()
			if out, err := n.CLI("exec", "db", "nslookup", "-type=a", "db"); err != nil {
				t.Errorf("%s: %s, %v", when, out, err)
			}
		}
		before := nodetest.Processes("longshore-names", "")
		release{"2", "names-fails=1"}.install(t, bin)
		out, err := n.CLI("upgrade")
		if err == nil || !strings.Contains(err.Error(), "the one before continues") || !strings.Contains(err.Error(), "this build does not start") || !strings.Contains(out, "upgraded  agent\n") {
			t.Errorf("%q, %v", out, err)
		}
		if now := nodetest.Processes("longshore-names", ""); len(now) != 1 || len(before) != 1 || now[0] != before[0] || processState(t, n, "names") != "replaced" {
			t.Errorf("name servers %v, and %v before", now, before)
		}
		answers("after the failure")
		release{"3", ""}.install(t, bin)
		if out, err := n.CLI("upgrade"); err != nil || !strings.Contains(out, "upgraded  names\n") || processState(t, n, "names") != "current" {
			t.Errorf("%q, %v", out, err)
		}
		answers("after the upgrade")
		for _, args := range [][]string{{"rm", "-f", "db"}, {"network", "rm", "near"}} {
			if out, err := n.CLI(args...); err != nil {
				t.Errorf("%v: %s, %v", args, out, err)
			}
		}
		clean(t, n)
	})
}

// TestOlderReleaseMeetsNewerFiles: if the files of an agent have a later format, `longshore upgrade` refuses an older release.
func TestOlderReleaseMeetsNewerFiles(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := t.TempDir()
		later := release{"4", "state=2"}
		later.install(t, bin)
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		pid := n.Pid()
		release{"3", ""}.install(t, bin)
		out, err := n.CLI("upgrade")
		if err == nil || !strings.Contains(err.Error(), "reads format 1 of durable.db; this node has 2") || n.Pid() != pid {
			t.Errorf("%q, %v", out, err)
		}
		later.install(t, bin)
		if s := processState(t, n, "agent"); s != "current" {
			t.Errorf("the agent is %q", s)
		}
		clean(t, n)
	})
}

// TestUpgradeKilledAtEveryStage: the agent or the keeper dies at each stage of its upgrade. Afterwards one of the two programs runs, the
// agent once something has started it again, the container continues, and the next upgrade succeeds.
func TestUpgradeKilledAtEveryStage(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), "cp", "-r", nodetest.Weakened(t)+"/.", bin).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("killed"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", countsUntilTold))
		out, err := n.CLI("inspect", "--format", "{{.State.Pid}}", c.ID)
		if err != nil {
			t.Fatal(err)
		}
		runs := func(what string) {
			t.Helper()
			now, err := n.CLI("inspect", "--format", "{{.State.Pid}}", c.ID)
			r, xerr := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/echo", "here"}, Timeout: 30}, grpc.WaitForReady(true))
			if err != nil || now != out || xerr != nil || string(r.GetStdout()) != "here\n" || len(n.Processes("keeper")) != 1 {
				t.Errorf("%s: the container's process is %q, and was %q, %v; exec: %v, %v; keepers %v", what, now, out, err, r, xerr, n.Processes("keeper"))
			}
		}
		serial := 0
		become := func(marks string) error {
			serial++
			release{fmt.Sprint(serial), marks}.install(t, bin)
			_, err := n.CLI("upgrade")
			return err
		}
		for _, victim := range []struct {
			name          string
			stages, first int // the first stage of the next program
		}{{"agent", 7, 4}, {"keeper", 4, 3}} {
			for stage := 1; stage <= victim.stages; stage++ {
				what := fmt.Sprintf("%s at stage %d", victim.name, stage)
				marks := fmt.Sprintf("%s-dies=%d", victim.name, stage)
				if stage < victim.first { // the program before dies
					if err := become(marks); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					marks = ""
				}
				launched := n.Pid()
				release{fmt.Sprint(what), marks}.install(t, bin)
				if victim.name == "agent" {
					upgraded := make(chan error, 1)
					go func() {
						_, err := n.CLI("upgrade")
						upgraded <- err
					}()
					if ws := n.Died(); !ws.Signaled() {
						t.Errorf("%s: it ended with %v", what, ws)
					}
					n.Up()
					<-upgraded // it fails, unless it has reached the next agent
				} else {
					var before []int
					roottest.Eventually(t, what+": one keeper, and no process that it starts", func() bool {
						before = n.Processes("keeper")
						return len(before) == 1
					})
					_, _ = n.CLI("upgrade")
					roottest.Eventually(t, what+": another keeper", func() bool {
						now := n.Processes("keeper")
						return len(now) == 1 && now[0] != before[0]
					})
					if n.Pid() != launched {
						t.Errorf("%s: the agent is another process", what)
					}
				}
				runs(what)
				if err := become(""); err != nil {
					t.Errorf("after %s: %v", what, err)
				}
				for _, name := range []string{"agent", "keeper"} {
					if s := processState(t, n, name); s != "current" {
						t.Errorf("after %s: the %s is %q", what, name, s)
					}
				}
				runs("after " + what)
			}
		}
		stopsWhole(t, n, c)
		pod.Remove(t)
		clean(t, n)
	})
}
