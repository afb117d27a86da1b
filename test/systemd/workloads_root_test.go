package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/test/nodetest"
)

// workloads are containers of Nomad and of a Compose project. Each adds lines to a file on the host.
type workloads struct {
	g      guest
	files  map[string]string // by a word that is in the command of the container
	plugin *nomadtest.Client
}

const allocation = "5f0f0c4e-8d5c-4f3d-9a5d-000000000039"

// workloads starts them: a task by the calls that Nomad makes to its plugin, which is the installed program, and two services.
func (g guest) workloads(image string) workloads {
	g.t.Helper()
	dir := g.t.TempDir()
	w := workloads{g: g, files: map[string]string{}, plugin: nomadtest.Plugin(g.t, "/usr/bin/longshore")}
	script := func(name, file string) string {
		return fmt.Sprintf(`: %s; while :; do echo beat >>%s; sleep 1; done`, name, file)
	}
	for _, d := range []string{"alloc/logs", "alloc/data", "task/local", "task/secrets"} {
		if err := os.MkdirAll(filepath.Join(dir, allocation, d), 0o777); err != nil {
			g.t.Fatal(err)
		}
	}
	w.plugin.Configure(g.t, map[string]any{"socket": "/run/longshore/nomad.sock"}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	task := nomadtest.Task(dir, allocation, "task", "aaaaaaaa", map[string]any{"image": image, "command": "/bin/sh", "args": []string{"-c", script("of-nomad", "/local/beats")}})
	if _, err := w.plugin.Driver.StartTask(g.t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
		g.t.Fatal(err)
	}
	w.files["of-nomad"] = filepath.Join(dir, allocation, "task/local/beats")

	project := "services:\n"
	for _, name := range []string{"of-compose-a", "of-compose-b"} {
		project += fmt.Sprintf("  %s:\n    image: %s\n    network_mode: none\n    command: [sh, -c, %q]\n    volumes: ['%s:/beats']\n", name, image, script(name, "/beats/"+name), dir)
		w.files[name] = filepath.Join(dir, name)
	}
	file := filepath.Join(dir, "compose.yaml")
	g.write(file, project)
	// The key of projects is the user's, in the home directory, and stays when packages are purged.
	g.run("env", "XDG_STATE_HOME="+dir, "longshore", "up", "-d", "-f", file)
	return w
}

// processes returns the pid and the start time of each one's shell: the oldest process with its command line, because
// a child of the shell has the same one until it executes its program.
func (w workloads) processes() map[string]string {
	w.g.t.Helper()
	found, oldest := map[string]string{}, map[string]uint64{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		args, _ := os.ReadFile(d + "/cmdline")
		stat, _ := os.ReadFile(d + "/stat")
		_, after, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(after)
		for name := range w.files {
			if command := string(args); strings.Contains(command, "sh\x00-c\x00: "+name+";") && len(fields) > 19 {
				started, err := strconv.ParseUint(fields[19], 10, 64)
				if since, ok := oldest[name]; err == nil && (!ok || started < since) {
					found[name], oldest[name] = filepath.Base(d)+" since "+fields[19], started
				}
			}
		}
	}
	if len(found) != len(w.files) {
		w.g.t.Errorf("of the processes of %v only %v run", w.files, found)
	}
	return found
}

// goOn checks that the same processes run, and write.
func (w workloads) goOn(was map[string]string) {
	w.g.t.Helper()
	for name, file := range w.files {
		before, _ := os.ReadFile(file)
		nodetest.Eventually(w.g.t, name+" writes", func() bool {
			now, err := os.ReadFile(file)
			return err == nil && len(now) > len(before)
		})
	}
	for name, now := range w.processes() {
		if was[name] != now {
			w.g.t.Errorf("%s was process %s, and is %s", name, was[name], now)
		}
	}
}

// gone checks that none of the processes runs.
func (w workloads) gone(was map[string]string) {
	w.g.t.Helper()
	for name, process := range was {
		pid, _, _ := strings.Cut(process, " ")
		if _, err := strconv.Atoi(pid); err != nil {
			w.g.t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat("/proc/" + pid); err == nil {
			w.g.t.Errorf("%s, process %s, runs on", name, process)
		}
	}
}
