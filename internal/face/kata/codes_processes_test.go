package kata

import (
	"context"
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
)

func processOf(args ...string) *katav1.Process {
	return &katav1.Process{Args: args, Cwd: "/", User: &katav1.User{}}
}

// withExec is running, and c1 has a further process e1, on a terminal or not.
func withExec(terminal bool) func(*testing.T, *rig) {
	return func(t *testing.T, r *rig) {
		t.Helper()
		running(t, r)
		p := processOf("cat")
		p.Terminal = terminal
		if _, err := r.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: p}); err != nil {
			t.Fatal(err)
		}
	}
}

func processTrials() []trial {
	exec := func(change func(*katav1.ExecProcessRequest)) func(*testing.T, *rig) error {
		return func(t *testing.T, r *rig) error {
			t.Helper()
			q := &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e2", Process: processOf("cat")}
			change(q)
			_, err := r.ExecProcess(t.Context(), q)
			return err
		}
	}
	signal := func(id, exec string, n uint32) func(*testing.T, *rig) error {
		return says(agent.SignalProcess, &katav1.SignalProcessRequest{ContainerId: id, ExecId: exec, Signal: n})
	}
	// ends signals, and returns the answer if the process then has a status.
	ends := func(exec string, n uint32, want int32) func(*testing.T, *rig) error {
		return func(t *testing.T, r *rig) error {
			t.Helper()
			err := signal("c1", exec, n)(t, r)
			if a, werr := katav1.NewAgentServiceClient(r.dial(t)).WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: exec}); werr != nil || a.GetStatus() != want {
				t.Errorf("WaitProcess: %v, %v, want %d", a, werr, want)
			}
			return err
		}
	}
	wait := func(id, exec string, texts ...string) func(*testing.T, *rig) error {
		return says(agent.WaitProcess, &katav1.WaitProcessRequest{ContainerId: id, ExecId: exec}, texts...)
	}
	resize := func(id, exec string) func(*testing.T, *rig) error {
		return says(agent.TtyWinResize, &katav1.TtyWinResizeRequest{ContainerId: id, ExecId: exec, Row: 5, Column: 9})
	}
	return []trial{
		{"ExecProcess", "a process", nil, func(t *testing.T, r *rig) error {
			t.Helper()
			err := exec(func(*katav1.ExecProcessRequest) {})(t, r)
			if ct, cerr := r.face.container(t.Context(), "c1"); cerr != nil || ct.Process("e2") == nil {
				t.Errorf("the process is not there: %v", cerr)
			}
			return err
		}},
		{"ExecProcess", "no container", nil, exec(func(q *katav1.ExecProcessRequest) { q.ContainerId = "none" })},
		{"ExecProcess", "no process", nil, exec(func(q *katav1.ExecProcessRequest) { q.Process = nil })},
		{"ExecProcess", "an exec id that is a path", nil, exec(func(q *katav1.ExecProcessRequest) { q.ExecId = "a/b" })},
		{"ExecProcess", "an exec id that is taken", withExec(false), exec(func(q *katav1.ExecProcessRequest) { q.ExecId = "e1" })},
		{"ExecProcess", "the first process's exec id", nil, exec(func(q *katav1.ExecProcessRequest) { q.ExecId = "c1" })},
		{"ExecProcess", "output by a port", nil, exec(func(q *katav1.ExecProcessRequest) { q.StderrPort = 7 })},
		{"SignalProcess", "a process", withExec(false), ends("e1", 15, 143)},
		{"SignalProcess", "all processes", nil, ends("", 9, 137)},
		{"SignalProcess", "a process that has ended", ended, signal("c1", "c1", 15)},
		{"SignalProcess", "no container", nil, signal("none", "", 15)},
		{"SignalProcess", "a signal that there is not", nil, signal("c1", "c1", 65)},
		{"SignalProcess", "a process that is gone", nil, signal("c1", "gone", 15)},
		{"WaitProcess", "a process that has ended", ended, wait("c1", "c1", "status:137")},
		{"WaitProcess", "the same process again", ended, func(t *testing.T, r *rig) error {
			t.Helper()
			if err := wait("c1", "", "status:137")(t, r); err != nil {
				return err
			}
			return wait("c1", "c1", "status:137")(t, r)
		}},
		{"WaitProcess", "no container", nil, wait("none", "")},
		{"WaitProcess", "a process that is gone", nil, wait("c1", "gone")},
		{"TtyWinResize", "a terminal", withExec(true), func(t *testing.T, r *rig) error {
			t.Helper()
			err := resize("c1", "e1")(t, r)
			ct, cerr := r.face.container(t.Context(), "c1")
			if cerr != nil {
				return cerr
			}
			if p := r.node.Supervisor.Process(core.Ref{Container: ct.ID, Process: "e1"}); p.Size.Rows != 5 || p.Size.Cols != 9 {
				t.Errorf("the terminal's size is %v", p.Size)
			}
			return err
		}},
		{"TtyWinResize", "no container", nil, resize("none", "")},
		{"TtyWinResize", "a process that is gone", nil, resize("c1", "gone")},
		{"TtyWinResize", "no terminal", nil, resize("c1", "c1")},
	}
}

func outputTrials() []trial {
	write := func(id, exec, text string) func(*testing.T, *rig) error {
		return says(agent.WriteStdin, &katav1.WriteStreamRequest{ContainerId: id, ExecId: exec, Data: []byte(text)})
	}
	// copied writes, and has the process's output.
	copied := func(text, want string) func(*testing.T, *rig) error {
		return func(t *testing.T, r *rig) error {
			t.Helper()
			err := write("c1", "c1", text)(t, r)
			if a, rerr := katav1.NewAgentServiceClient(r.dial(t)).ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "c1", Len: 100}); rerr != nil || string(a.GetData()) != want {
				t.Errorf("read %v, %v, want %q", a, rerr, want)
			}
			return err
		}
	}
	read := func(call func(agent, context.Context, *katav1.ReadStreamRequest) (*katav1.ReadStreamResponse, error), id, exec string, n uint32, texts ...string) func(*testing.T, *rig) error {
		return says(call, &katav1.ReadStreamRequest{ContainerId: id, ExecId: exec, Len: n}, texts...)
	}
	written := func(t *testing.T, r *rig) {
		t.Helper()
		running(t, r)
		if err := write("c1", "c1", "text")(t, r); err != nil {
			t.Fatal(err)
		}
	}
	closing := func(id, exec string) func(*testing.T, *rig) error {
		return says(agent.CloseStdin, &katav1.CloseStdinRequest{ContainerId: id, ExecId: exec})
	}
	return []trial{
		{"WriteStdin", "a process", nil, copied("text", "text")},
		{"WriteStdin", "no data", nil, copied("", "")},
		{"WriteStdin", "no container", nil, write("none", "", "x")},
		{"WriteStdin", "a process that is gone", nil, write("c1", "gone", "x")},
		{"WriteStdin", "a closed input", ended, write("c1", "c1", "x")},
		{"ReadStdout", "a process", written, read(agent.ReadStdout, "c1", "c1", 4, "text")},
		{"ReadStdout", "no container", nil, read(agent.ReadStdout, "none", "", 1)},
		{"ReadStdout", "no bytes", nil, read(agent.ReadStdout, "c1", "c1", 0)},
		{"ReadStdout", "a process that is gone", nil, read(agent.ReadStdout, "c1", "gone", 1)},
		{"ReadStderr", "the end", ended, func(t *testing.T, r *rig) error {
			t.Helper()
			a, err := r.ReadStderr(t.Context(), &katav1.ReadStreamRequest{ContainerId: "c1", Len: 1})
			if len(a.GetData()) > 0 {
				t.Errorf("after the end there is %q", a.GetData())
			}
			return err
		}},
		{"ReadStderr", "no container", nil, read(agent.ReadStderr, "none", "", 1)},
		{"ReadStderr", "no bytes", nil, read(agent.ReadStderr, "c1", "c1", 0)},
		{"ReadStderr", "a process that is gone", nil, read(agent.ReadStderr, "c1", "gone", 1)},
		{"CloseStdin", "a process", nil, func(t *testing.T, r *rig) error {
			t.Helper()
			err := closing("c1", "c1")(t, r)
			if a, werr := katav1.NewAgentServiceClient(r.dial(t)).WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1"}); werr != nil || a.GetStatus() != 3 {
				t.Errorf("the process has not ended: %v, %v", a, werr)
			}
			return err
		}},
		{"CloseStdin", "no container", nil, closing("none", "")},
		{"CloseStdin", "a process that is gone", nil, closing("c1", "gone")},
	}
}
