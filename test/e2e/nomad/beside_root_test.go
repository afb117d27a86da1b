package nomad

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/test/nodetest"
)

const (
	besideTasks  = 50
	besideRounds = 5
	mostHelp     = 1 << 20 // memory of our helpers for each task, bytes
)

// TestBesideNomadsOwnDrivers places fifty tasks by Nomad's own drivers and by ours, in turns: the
// last of ours runs in a third of raw_exec's time, and our helpers have at most a megabyte for each
// task.
func TestBesideNomadsOwnDrivers(t *testing.T) {
	start(t, options{docker: true, extra: `plugin "raw_exec" {
  config {
    enabled = true
  }
}`, client: `chroot_env = { "/bin/busybox" = "/bin/busybox" }`}, func(r *rig) {
		drivers := []string{"raw_exec"}
		for _, d := range []string{"exec", "docker"} {
			switch is, ok := r.node().Drivers[d]; {
			case is.Healthy:
				drivers = append(drivers, d)
			case d == "docker" && r.docker == nil:
				t.Log("skipped: docker, for want of a dockerd: set DOCKERD to one")
			case ok:
				t.Logf("skipped: %s, of which Nomad says: %s", d, is.HealthDescription)
			default:
				t.Logf("skipped: %s, which this Nomad does not have (exec needs one that was built with cgo)", d)
			}
		}
		drivers = append(drivers, "longshore")
		took := map[string][]time.Duration{}
		for round := range besideRounds {
			// Each comes after each other one in turn: leftover work falls to the next.
			for i := range drivers {
				d := drivers[(round+i)%len(drivers)]
				name := fmt.Sprintf("%s-%d", strings.ReplaceAll(d, "_", "-"), round)
				before := helpers()
				took[d] = append(took[d], r.place(by(d, name), name, besideTasks))
				if d == "longshore" {
					r.isSmall(before)
				} else {
					t.Logf("%s: its helpers have %.1f MB a task", d, float64(r.others(before))/besideTasks/1e6)
				}
				r.forget(name)
				r.eventually("no shim of docker's is left", func() bool { return len(nodetest.Processes("containerd-shim-runc-v2", "")) == 0 })
			}
		}
		for _, d := range slices.Sorted(maps.Keys(took)) {
			t.Logf("%s: the last of %d tasks ran after %s, the median of %v; %.2f of raw_exec's", d, besideTasks, median(took[d]), took[d], float64(median(took[d]))/float64(median(took["raw_exec"])))
		}
		if ours, theirs := median(took["longshore"]), median(took["raw_exec"]); 3*ours > theirs {
			t.Errorf("the last of %d tasks ran after %s, with raw_exec after %s: more than a third", besideTasks, ours, theirs)
		}
	})
}

// by is the job many with another driver.
func by(driver, name string) string {
	body := strings.Replace(many(name, besideTasks, ""), `driver = "longshore"`, fmt.Sprintf("driver = %q", driver), 1)
	if driver == "raw_exec" || driver == "exec" {
		body = strings.NewReplacer("image   = \"IMAGE\"\n", "", `image_pull_policy = "missing"`, "", "/bin/sh", "/bin/busybox", `args = ["-c"`, `args = ["sh", "-c"`).Replace(body)
	}
	if driver == "docker" {
		// Ours and the others are in the host's network; docker's driver is when asked.
		body = strings.Replace(body, `image_pull_policy = "missing"`, `network_mode = "host"`, 1)
	}
	return body
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2].Round(time.Millisecond)
}

// isSmall waits until our processes beside the tasks are small: garbage of many starts leaves the
// agent's heap a moment later.
func (r *rig) isSmall(before map[int]int64) {
	r.t.Helper()
	var more int64
	r.eventually("our helpers have at most a megabyte for each task", func() bool {
		more = 0
		now := helpers()
		pids := slices.Concat([]int{r.Pid()}, nodetest.Processes("driver", ""), nodetest.Pair("keeper"), nodetest.Pair("nest"))
		for _, pid := range pids {
			more += now[pid] - before[pid]
		}
		return more <= besideTasks*mostHelp
	})
	r.t.Logf("longshore: its helpers have %.2f MB a task", float64(more)/besideTasks/1e6)
}

// others is the memory, in bytes, of new processes, and the growth of docker's daemons.
func (r *rig) others(before map[int]int64) (sum int64) {
	now := helpers()
	for pid, pss := range now {
		if _, ok := before[pid]; !ok {
			sum += pss
		}
	}
	for _, pid := range slices.Concat(nodetest.Processes("dockerd", ""), nodetest.Processes("containerd", "")) {
		sum += now[pid] - before[pid]
	}
	return sum
}

// helpers is the memory of each process that stands beside the tasks, bytes: of all
// but the tasks themselves and this test.
func helpers() map[int]int64 {
	found := map[int]int64{}
	files, _ := filepath.Glob("/proc/[0-9]*/smaps_rollup")
	for _, f := range files {
		dir := filepath.Dir(f)
		var pid int
		_, _ = fmt.Sscanf(dir, "/proc/%d", &pid)
		line, _ := os.ReadFile(dir + "/cmdline")
		exe, _ := os.Readlink(dir + "/exe")
		if strings.Contains(exe, "busybox") || strings.Contains(exe, ".test") || len(line) == 0 {
			continue
		}
		b, _ := os.ReadFile(f)
		for l := range strings.Lines(string(b)) {
			var kb int64
			if k, _ := fmt.Sscanf(l, "Pss: %d kB", &kb); k == 1 {
				found[pid] = kb << 10
			}
		}
	}
	return found
}
