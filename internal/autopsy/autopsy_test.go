package autopsy_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
)

var levels = []autopsy.Level{{Name: "container", Path: "/l/p/c", Limit: 64 << 20}, {Name: "sandbox", Path: "/l/p", Limit: 256 << 20}}

func TestVerdicts(t *testing.T) {
	sigkill, sigterm := core.Exit{Signal: 9}, core.Exit{Signal: 15}
	stop := &core.StopRequest{Owner: core.OwnerCRI, Call: "StopContainer", Signal: 15}
	victim := func(pid int, memcg string) core.OOMVictim {
		return core.OOMVictim{Pid: pid, Memcg: memcg, Victim: "/l/p/c"}
	}
	for name, c := range map[string]struct {
		in      autopsy.Input
		oom     *core.OOM
		verdict string
	}{
		"completed":                  {autopsy.Input{}, nil, "completed: exit code 0"},
		"code":                       {autopsy.Input{Exit: core.Exit{Code: 2}}, nil, "exited with code 2"},
		"signal":                     {autopsy.Input{Exit: core.Exit{Signal: 34}}, nil, "killed by signal 34, which nobody here has sent"},
		"a code that tells a signal": {autopsy.Input{Exit: core.Exit{Code: 143}}, nil, "exited with code 143 (128 + SIGTERM)"},
		"a code that tells none":     {autopsy.Input{Exit: core.Exit{Code: 255}}, nil, "exited with code 255"},
		"a fault":                    {autopsy.Input{Exit: core.Exit{Signal: 8}}, nil, "crashed: killed by SIGFPE, it made an error of arithmetic, such as a division by zero"},
		"a fault with a core": {
			autopsy.Input{Exit: core.Exit{Signal: 6, Core: true}}, nil, "crashed: killed by SIGABRT, it gave up by itself (abort), with a core dump",
		},
		"a fault that was asked for": {
			autopsy.Input{Exit: core.Exit{Signal: 6}, StopRequest: &core.StopRequest{Owner: core.OwnerCLI, Call: "kill", Signal: 6}},
			nil,
			"ended by SIGABRT, asked for by cli kill",
		},
		"the end of a pid namespace": {
			autopsy.Input{Exit: sigkill, PidHolder: "0123456789abcdef"}, nil, "killed by SIGKILL, as the kernel does at the end of container 0123456789ab, which has its pid namespace",
		},
		"a reboot":    {autopsy.Input{Exit: core.Exit{Signal: 1}, PidOne: true}, nil, "restarted by itself: a program in it has called reboot"},
		"a power-off": {autopsy.Input{Exit: core.Exit{Signal: 2}, PidOne: true}, nil, "switched off by itself: a program in it has called reboot to power off or halt"},
		"a power-off that was asked for": {
			autopsy.Input{Exit: core.Exit{Signal: 2}, PidOne: true, StopRequest: stop},
			nil,
			"switched off by itself after SIGTERM, asked for by cri StopContainer: a program in it has called reboot to power off or halt",
		},
		"a SIGHUP":      {autopsy.Input{Exit: core.Exit{Signal: 1}}, nil, "killed by SIGHUP, which nobody here has sent"},
		"refused forks": {autopsy.Input{Exit: core.Exit{Code: 2}, Refused: 3}, nil, "exited with code 2; the kernel had refused it 3 processes or threads at its limit of pids"},
		"throttled":     {autopsy.Input{Exit: core.Exit{Code: 1}, Throttled: 9}, nil, "exited with code 1; it was slowed down at its memory.high"},
		"lost": {
			autopsy.Input{Exit: core.Exit{Lost: true}, Kills: []uint64{3}},
			nil,
			autopsy.AllGone,
		},
		"unhealthy": {
			autopsy.Input{Exit: core.Exit{Signal: 9}, StopRequest: &core.StopRequest{Owner: core.OwnerSwarm, Call: core.UnhealthyCall, Signal: 15}},
			nil,
			"killed by SIGKILL: it did not end by SIGTERM within its grace; because its health check has failed",
		},
		"shutdown": {
			autopsy.Input{Exit: core.Exit{}, StopRequest: &core.StopRequest{Owner: core.OwnerCLI, Call: core.ShutdownCall, Signal: 15}},
			nil,
			"exited with code 0 after SIGTERM, because the node shuts down",
		},
		"asked, ended by itself": {
			autopsy.Input{Exit: core.Exit{Code: 143}, StopRequest: stop},
			nil,
			"exited with code 143 after SIGTERM, asked for by cri StopContainer",
		},
		"the log names the main process": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Levels: levels, Victims: []core.OOMVictim{victim(7, "/l/p/c")}},
			&core.OOM{Level: "container", Victim: 7, Main: true, Kills: 1},
			"killed by the kernel: out of memory at the limit of the container (64 MiB)",
		},
		"the sandbox's limit": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Levels: levels, Victims: []core.OOMVictim{victim(7, "/l/p")}},
			&core.OOM{Level: "sandbox", Victim: 7, Main: true, Kills: 1},
			"killed by the kernel: out of memory at the limit of the sandbox (256 MiB)",
		},
		"the host's memory": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Levels: levels, Victims: []core.OOMVictim{victim(7, "")}},
			&core.OOM{Level: "host", Victim: 7, Main: true, Kills: 1},
			"killed by the kernel: out of memory at the whole host",
		},
		"the log's pids mean nothing here": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Levels: levels, Victims: []core.OOMVictim{victim(0, "/l/p/c")}},
			&core.OOM{Level: "container", Main: true, Kills: 1},
			"killed by the kernel: out of memory at the limit of the container (64 MiB)",
		},
		"the log names a child, the main process was killed by somebody": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Levels: levels, Victims: []core.OOMVictim{victim(8, "/l/p/c")}},
			&core.OOM{Level: "container", Victim: 8, Kills: 1},
			"killed by SIGKILL, which nobody here has sent; before that the kernel killed a process of it, out of memory at the limit of the container (64 MiB)",
		},
		"a child was killed, main completed": {
			autopsy.Input{Exit: core.Exit{}, Pid: 7, Kills: []uint64{2, 2}, Levels: levels},
			&core.OOM{Level: "container", Kills: 2},
			"completed: exit code 0; before that the kernel killed 2 processes of it, out of memory at the limit of the container (64 MiB)",
		},
		"a drain with SIGTERM after a child was killed": {
			autopsy.Input{Exit: sigterm, Pid: 7, StopRequest: stop, Kills: []uint64{1, 1}, Levels: levels},
			&core.OOM{Level: "container", Kills: 1},
			"ended by SIGTERM, asked for by cri StopContainer; before that the kernel killed a process of it, out of memory at the limit of the container (64 MiB)",
		},
		"no log: killed, nobody asked": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Peak: 64 << 20, Levels: levels},
			&core.OOM{Level: "container", Main: true, Kills: 1},
			"killed by the kernel: out of memory at the limit of the container (64 MiB)",
		},
		"no log: the peak has reached no limit": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Peak: 32 << 20, Levels: levels},
			&core.OOM{Main: true, Kills: 1},
			"killed by the kernel: out of memory at a limit above it or that of the whole host: the kernel's log does not tell",
		},
		"no log: killed after a stop": {
			autopsy.Input{Exit: sigkill, Pid: 7, StopRequest: stop, Kills: []uint64{1, 1}, Levels: levels},
			&core.OOM{Level: "container", Kills: 1},
			"killed by SIGKILL: it did not end by SIGTERM within its grace; asked for by cri StopContainer; before that the kernel killed a process of it, out of memory at the limit of the container (64 MiB)",
		},
		"no log: v2 tells the level": {
			autopsy.Input{Exit: sigkill, Pid: 7, Kills: []uint64{1, 1}, Local: []uint64{0, 1}, Levels: levels},
			&core.OOM{Level: "sandbox", Main: true, Kills: 1},
			"killed by the kernel: out of memory at the limit of the sandbox (256 MiB)",
		},
		"below the tiny init": {
			autopsy.Input{Exit: core.Exit{Code: 137}, Pid: 7, Init: true, Kills: []uint64{1, 1}, Levels: levels, Victims: []core.OOMVictim{victim(8, "/l/p/c")}},
			&core.OOM{Level: "container", Victim: 8, Main: true, Kills: 1},
			"killed by the kernel: out of memory at the limit of the container (64 MiB)",
		},
		"another container of the pod": {
			autopsy.Input{Exit: core.Exit{}, Pid: 7, Kills: []uint64{0, 1}, Levels: levels, Victims: []core.OOMVictim{{Pid: 9, Memcg: "/l/p", Victim: "/l/p/other"}}},
			nil, "completed: exit code 0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := autopsy.Make(c.in)
			if d := cmp.Diff(c.oom, a.OOM); d != "" {
				t.Error(d)
			}
			if a.Verdict != c.verdict {
				t.Errorf("verdict:\n%s\nwant:\n%s", a.Verdict, c.verdict)
			}
		})
	}
}

func TestABootIsLostWithItsReason(t *testing.T) {
	a := autopsy.Boot(time.Unix(1, 0))
	if !a.Exit.Lost || a.Exit.Status() != core.LostCode || a.Verdict != "node restarted: it was running when the node went down" {
		t.Fatalf("%+v", a)
	}
}

// TestReason: a signal that was caught long ago is not the reason of an end; a stop is, by any
// signal.
func TestReason(t *testing.T) {
	at := time.Unix(1000, 0)
	hup, term := &core.StopRequest{Signal: 1, At: at}, &core.StopRequest{Signal: 15, At: at}
	stop := &core.StopRequest{Signal: 10, At: at, Stop: true}
	usr := &core.StopRequest{Signal: 10, At: at, Incidental: true}
	for name, c := range map[string]struct {
		asked *core.StopRequest
		exit  core.Exit
		want  bool
	}{
		"nobody":                        {nil, core.Exit{At: at}, false},
		"by the signal":                 {hup, core.Exit{Signal: 1, At: at.Add(time.Hour)}, true},
		"by the signal, as a shell":     {term, core.Exit{Code: 143, At: at.Add(time.Hour)}, true},
		"soon after it":                 {term, core.Exit{Code: 0, At: at.Add(time.Second)}, true},
		"long after it was caught":      {hup, core.Exit{Code: 0, At: at.Add(time.Minute)}, false},
		"by another":                    {hup, core.Exit{Signal: 9, At: at.Add(time.Second)}, false},
		"by what asks for no end":       {usr, core.Exit{Signal: 10, At: at}, true},
		"the same, as a shell":          {usr, core.Exit{Code: 138, At: at}, true},
		"soon after what asks for none": {usr, core.Exit{Code: 0, At: at}, false},
		"by a stop":                     {stop, core.Exit{Code: 0, At: at.Add(time.Hour)}, true},
		"by a stop that had to kill it": {stop, core.Exit{Signal: 9, At: at.Add(time.Hour)}, true},
	} {
		if got := autopsy.Reason(c.asked, c.exit); (got != nil) != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
