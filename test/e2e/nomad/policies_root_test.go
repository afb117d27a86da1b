package nomad

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestWhatNomadDoesAboutATaskThatEnds: it is started again after it ran out of
// memory, put elsewhere after it failed, and killed when it does not listen.
func TestWhatNomadDoesAboutATaskThatEnds(t *testing.T) {
	start(t, options{}, func(r *rig) {
		restart := func(n int) string {
			return fmt.Sprintf("restart {\n attempts = %d\n delay = \"0s\"\n mode = \"fail\"\n}\n", n)
		}
		// The first run's file for the second lies in the allocation's directory, or in a volume
		// when the second is another allocation.
		r.run(job("oom", "service", restart(1), "", `args = ["-c", "test -e /alloc/data/second && { echo again; exec sleep 1000; }; touch /alloc/data/second; exec tail /dev/zero"]`))
		r.run(job("moves", "service", restart(0)+`
    reschedule {
      attempts       = 1
      interval       = "1h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }`, "", `args = ["-c", "test -e /seen/second && { echo elsewhere; exec sleep 1000; }; touch /seen/second; exit 9"]
        mount {
          type   = "volume"
          source = "seen"
          target = "/seen"
        }`))
		r.run(job("deaf", "service", "", `
      kill_signal  = "SIGUSR1"
      kill_timeout = "2s"`, `args = ["-c", "trap 'echo told by USR1' USR1; echo ready; while true; do sleep 0.1; done"]`))

		a := r.allocation("oom", "running")
		r.logged(a, "again")
		r.eventually("Nomad has heard of it", func() bool { a = r.look(a); return strings.Count(a.said("main"), "Started: ") == 2 })
		said := a.said("main")
		first := slices.IndexFunc(a.TaskStates["main"].Events, func(e taskEvent) bool { return e.Type == "Terminated" })
		if a.TaskStates["main"].Restarts != 1 || !strings.Contains(said, "oom:true") || !strings.Contains(said, "Restarting: ") ||
			first < 0 || a.TaskStates["main"].Events[first].Details["oom_killed"] != "true" {
			t.Errorf("oom, restarted %d times:\n%s", a.TaskStates["main"].Restarts, said)
		}

		r.logged(r.allocation("deaf", "running"), "ready")
		r.must("job", "stop", "-detach", "deaf")
		a = r.allocation("deaf", "complete")
		r.logged(a, "told by USR1")
		asked, ended := a.event("main", "Killing"), a.event("main", "Terminated")
		if ended.Details["signal"] != "9" || ended.Details["exit_code"] != "137" {
			t.Errorf("deaf:\n%s", a.said("main"))
		}
		if after := time.Duration(ended.Time - asked.Time); after < 2*time.Second {
			t.Errorf("deaf was killed %s after it was asked to end, and had 2s", after)
		}

		before := r.allocation("moves", "failed")
		if !strings.Contains(before.said("main"), "Exit Code: 9") {
			t.Errorf("moves:\n%s", before.said("main"))
		}
		r.eventually("another allocation runs in its place", func() bool {
			return slices.ContainsFunc(r.allocs("moves"), func(b alloc) bool { a = b; return b.ClientStatus == "running" })
		})
		r.logged(a, "elsewhere")
		if a = r.look(a); a.PreviousAllocation != before.ID || a.ID == before.ID {
			t.Errorf("%s runs after %q, not %s", a.ID, a.PreviousAllocation, before.ID)
		}
		r.purge("oom", "deaf", "moves")
		r.nothingLeft()
	})
}

// TestAllTasksAreSignalled: a signal for no task in particular is for each.
func TestAllTasksAreSignalled(t *testing.T) {
	start(t, options{}, func(r *rig) {
		command := `args = ["-c", "trap 'echo $NOMAD_TASK_NAME got USR2' USR2; echo ready; while true; do sleep 0.1; done"]`
		r.run(job("pair", "service", more("side", command), "", command))
		a := r.allocation("pair", "running")
		log := func(task, want string) {
			t.Helper()
			r.eventually("the log of "+task+" says "+want, func() bool {
				out, _ := r.nomad("alloc", "logs", a.ID, task)
				return strings.Contains(out, want)
			})
		}
		log("main", "ready")
		log("side", "ready")
		r.must("alloc", "signal", "-s", "SIGUSR2", a.ID)
		log("main", "main got USR2")
		log("side", "side got USR2")
		if out, err := r.nomad("alloc", "signal", "-s", "SIGNONSENSE", a.ID); err == nil {
			t.Errorf("a signal that is none: %s", out)
		}
		r.must("alloc", "signal", a.ID) // SIGKILL, after which Nomad starts them again
		r.eventually("both tasks are started again", func() bool {
			now := r.look(a)
			return now.TaskStates["main"].Restarts > 0 && now.TaskStates["side"].Restarts > 0
		})
		if said := r.look(a).said("main"); !strings.Contains(said, "signal:9") {
			t.Errorf("main:\n%s", said)
		}
		r.purge("pair")
		r.nothingLeft()
	})
}

type deployment struct {
	JobVersion int
	Status     string
}

// TestAJobIsRolledOver: new versions come one allocation after the other, and one
// that does not run goes back to the version before.
func TestAJobIsRolledOver(t *testing.T) {
	start(t, options{}, func(r *rig) {
		version := func(command string) string {
			return job("rolls", "service", `
    count = 3
    update {
      max_parallel      = 1
      health_check      = "task_states"
      min_healthy_time  = "100ms"
      healthy_deadline  = "2m"
      progress_deadline = "0s"
      auto_revert       = true
    }
    restart {
      attempts = 0
      mode     = "fail"
    }`, `kill_signal = "SIGKILL"`, `args = ["-c", "`+command+`"]`)
		}
		deployed := func(n int, status string) {
			t.Helper()
			r.eventually(fmt.Sprintf("version %d is %s", n, status), func() bool {
				var list []deployment
				r.get("/v1/job/rolls/deployments", &list)
				return slices.ContainsFunc(list, func(d deployment) bool { return d.JobVersion == n && d.Status == status })
			})
		}
		running := func(n int) (list []alloc) {
			t.Helper()
			r.eventually(fmt.Sprintf("three of version %d run, and nothing else", n), func() bool {
				list = nil
				for _, a := range r.allocs("rolls") {
					if a.ClientStatus != "running" {
						continue
					}
					if list = append(list, a); a.JobVersion != n {
						return false
					}
				}
				return len(list) == 3
			})
			return list
		}
		r.run(version("echo one; exec sleep 1000"))
		deployed(0, "successful")
		r.run(version("echo two; exec sleep 1000"))
		deployed(1, "successful")
		second := running(1)
		slices.SortFunc(second, func(a, b alloc) int { return int(a.event("main", "Received").Time - b.event("main", "Received").Time) })
		for i := range second[1:] {
			if was, next := second[i].event("main", "Started").Time, second[i+1].event("main", "Received").Time; next < was {
				t.Errorf("allocation %d was there %s before the one before it ran", i+1, time.Duration(was-next))
			}
		}
		for _, a := range r.allocs("rolls") {
			if a.JobVersion == 0 && a.ClientStatus != "complete" {
				t.Errorf("of version 0 there is %s, %s", a.ID, a.ClientStatus)
			}
		}
		r.run(version("echo three; exit 3"))
		deployed(2, "failed")
		deployed(3, "successful")
		for _, a := range running(3) {
			r.logged(a, "two")
		}
		r.purge("rolls")
		r.nothingLeft()
	})
}
