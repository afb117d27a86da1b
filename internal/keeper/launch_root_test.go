package keeper_test

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

func TestContainerByCrun(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		log := e.file("0.log")
		l := e.container("c1", core.IO{Sinks: []core.Sink{{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: log}}},
			"sh", "-c", "echo out; echo err >&2; printf part; exit 7")
		if got := e.launch(l); got.Pid <= 0 {
			t.Fatalf("pid %d", got.Pid)
		}
		e.mustRun(e.crun("start", "c1"))
		x := e.exit(l.Ref)
		if x.Exit.Code != 7 || x.Exit.Signal != 0 || x.Exit.Lost {
			t.Errorf("exit %+v", x.Exit)
		}
		if got := texts(t, read(t, log), "stdout"); got != "out\npart" {
			t.Errorf("stdout %q", got)
		}
		if got := texts(t, read(t, log), "stderr"); got != "err\n" {
			t.Errorf("stderr %q", got)
		}
		if err := e.c.Ack(e.ctx(), l.Ref); err != nil {
			t.Error(err)
		}
		if st := e.status(); st.Pending != 0 || st.Processes != 1 || st.NestPid == 0 {
			t.Errorf("status %+v", st)
		}
		if err := e.c.Forget(e.ctx(), l.Ref); err != nil {
			t.Error(err)
		}
		if st := e.status(); st.Processes != 0 {
			t.Errorf("status %+v", st)
		}
	})
}
