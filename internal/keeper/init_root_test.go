package keeper_test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// TestInit runs programs below the tiny init as pid 1 of a container.
func TestInit(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		run := func(id string, args ...string) (string, core.CommandLaunch) {
			t.Helper()
			log := e.file(id + ".log")
			l := e.container(id, core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: log}}}, append([]string{"/init", "init"}, args...)...)
			if out, err := exec.CommandContext(t.Context(), "cp", e.binary, e.file("bundle-"+id)+"/rootfs/init").CombinedOutput(); err != nil {
				t.Fatalf("%s", out)
			}
			e.launch(l)
			e.mustRun(e.crun("start", id))
			return log, l
		}
		log, l := run("code", "sh", "-c", `(sh -c 'busybox sleep 0.1; echo orphan' &); busybox ps -o pid,args; exit 5`)
		x := e.exit(l.Ref)
		if x.Exit.Code != 5 {
			t.Errorf("exit %+v", x.Exit)
		}
		if s := read(t, log); !strings.Contains(s, "1 {init} /init init sh") && !strings.Contains(s, "1 /init init sh") {
			t.Errorf("log %q", s)
		}
		_, l = run("killed", "sh", "-c", "kill -9 $$")
		if x := e.exit(l.Ref); x.Exit.Code != 128+9 {
			t.Errorf("exit %+v", x.Exit)
		}
		log, l = run("none", "/no/such")
		if x := e.exit(l.Ref); x.Exit.Code != 127 {
			t.Errorf("exit %+v, log %q", x.Exit, read(t, log))
		}
		log, l = run("forward", "sh", "-c", "trap 'echo hup' HUP; trap 'echo term; exit 3' TERM; echo ready; while :; do busybox sleep 1000 & wait; done")
		waitText(t, log, "ready\n")
		if err := e.c.Signal(e.ctx(), l.Ref, int(syscall.SIGHUP)); err != nil {
			t.Fatal(err)
		}
		waitText(t, log, "ready\nhup\n")
		if err := e.c.Signal(e.ctx(), l.Ref, int(syscall.SIGTERM)); err != nil {
			t.Fatal(err)
		}
		if x := e.exit(l.Ref); x.Exit.Code != 3 {
			t.Errorf("exit %+v, log %q", x.Exit, read(t, log))
		}
		_, l = run("alone")
		for { // a pid 1 without a handler yet is sent nothing
			err := e.c.Signal(e.ctx(), l.Ref, int(syscall.SIGTERM))
			if errdefs.IsNotFound(err) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		// Before our handler is set, 2 is the Go runtime's own way out, and the signal itself the
		// kernel's: it spares a pid 1 without a handler only while no thread blocks the signal, as
		// the Go runtime does for a moment.
		if x := e.exit(l.Ref); x.Exit.Code != 0 && x.Exit.Code != 2 || x.Exit.Signal != 0 && x.Exit.Signal != int(syscall.SIGTERM) {
			t.Errorf("exit %+v", x.Exit)
		}
	})
}
