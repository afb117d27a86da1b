package chaos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// upgrades is a node under load, with containers of all faces. The test upgrades its programs many times.
type upgrades struct {
	*matrix
	bin     string   // the node's installed programs
	builds  []string // directories of programs to install in turn
	drivers map[string]driver
	docker  *byDocker
	tasks   []*task
	clients clients
	images  []string // to pull
	pulls   atomic.Int32
}

// task is a container that writes numbered lines until it is stopped.
type task struct {
	owner, name string
	id          string
	pid         int
	log         follower
}

// TestUpgradesUnderLoad upgrades all processes of the node between two builds again and again, while containers of all faces write,
// clients make requests, execute programs, pull images and have connections to published ports, and health is checked: no process
// ends, no line of output is lost, no health check fails, no connection to a container breaks, and a client that repeats a failed
// request once never fails, nor does it find a closed port.
//
// LONGSHORE_UPGRADES is the number of upgrades, LONGSHORE_UPGRADE_CONTAINERS that of containers, LONGSHORE_UPGRADE_RATE the bytes per
// second of each of them, LONGSHORE_UPGRADE_LATENCY the milliseconds that each try of a request may take, on a machine that does
// nothing else, LONGSHORE_UPGRADE_PACE the factor of the clients' pauses, and LONGSHORE_UPGRADE_BINS has the directories of the two builds, with a colon between them. Without the last
// one, the second build is the first with another file's content.
func TestUpgradesUnderLoad(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		reap(t)
		u := startUpgrades(t)
		count, rate := number(t, "LONGSHORE_UPGRADE_CONTAINERS", 12), number(t, "LONGSHORE_UPGRADE_RATE", 100_000)
		u.populate(count, rate)
		begun, before := time.Now(), u.written()
		u.serve()
		events := len(u.n.Events())
		rounds := number(t, "LONGSHORE_UPGRADES", 3)
		for i := range rounds {
			u.upgrade(i)
			if t.Failed() {
				t.Logf("stopped after upgrade %d", i+1)
				break
			}
		}
		u.clients.stop(t)
		took := time.Since(begun)
		bytes := u.written() - before
		for _, e := range u.n.Events()[events:] {
			if e.Kind == "exited" && slices.ContainsFunc(u.tasks, func(k *task) bool { return k.id == e.Container }) {
				t.Errorf("a container ended during the upgrades: %+v", e)
			}
		}
		u.healthy()
		u.finish()
		if log, err := os.ReadFile(filepath.Join(u.n.Dir, "agent.log")); err != nil || strings.Contains(string(log), "the audit trail misses lines") {
			t.Errorf("lines of the audit trail were lost, or there is no log: %v", err)
		}
		t.Logf("%d upgrades of %d containers in %.0f s, %.1f MB/s of output", rounds, len(u.tasks), took.Seconds(), float64(bytes)/1e6/took.Seconds())
		u.n.Check()
	})
}

// number returns the value of a variable of the environment, or else a default.
func number(t *testing.T, name string, n int) int {
	t.Helper()
	if s := os.Getenv(name); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return n
}

// startUpgrades starts the node with all faces.
func startUpgrades(t *testing.T) *upgrades {
	t.Helper()
	u := &upgrades{bin: t.TempDir(), drivers: map[string]driver{}, clients: clients{
		calls: map[string]*calls{}, bound: time.Duration(number(t, "LONGSHORE_UPGRADE_LATENCY", 0)) * time.Millisecond,
		pace: number(t, "LONGSHORE_UPGRADE_PACE", 1),
	}}
	if s := os.Getenv("LONGSHORE_UPGRADE_BINS"); s != "" {
		for build := range strings.SplitSeq(s, ":") {
			u.builds = append(u.builds, copiedPrograms(t, build, ""))
		}
	} else {
		u.builds = []string{copiedPrograms(t, nodetest.Bin(t), ""), copiedPrograms(t, nodetest.Bin(t), "x")}
	}
	u.install(t, u.builds[0])
	dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "docker.sock")
	n := nodetest.Start(t, nodetest.Options{Bin: u.bin, Config: fmt.Sprintf(
		"[network]\nmode = \"builtin\"\n[face.mesos]\nenabled = true\n[face.swarm]\nenabled = true\n[face.docker]\nenabled = true\nsocket = %q\n", socket)})
	u.matrix = &matrix{t: t, n: n, image: n.Busybox(t), counts: map[string]int{}}
	registry := registered(t)
	u.images = served(t)
	u.pod = n.RunPod(t, n.PodConfig("upgrades"))
	u.drivers["cli"] = &byCLI{m: u.matrix, image: u.image}
	u.drivers["cri"] = &byCRI{byCLI: byCLI{m: u.matrix, image: u.image, force: true}, ids: map[string]*nodetest.Container{}}
	mesos := &byMesos{m: u.matrix, image: u.image}
	mesos.http.Transport = unixTransport(filepath.Join(n.State, "mesos.sock"))
	u.drivers["mesos"] = mesos
	nomad := &byNomad{m: u.matrix, image: registry}
	nomad.Client = nomadtest.Plugin(t, filepath.Join(u.bin, "longshore"))
	nomad.Configure(t, map[string]any{"socket": filepath.Join(n.State, "nomad.sock")}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	u.drivers["nomad"] = nomad
	swarm := &bySwarm{byCLI: byCLI{m: u.matrix, force: true}, image: registry, manager: swarmtest.New(t)}
	swarm.manager.Period = 5 * time.Second
	if _, err := n.CLI("swarm", "join", swarm.manager.Addr, "--token", swarm.manager.Token); err != nil {
		t.Fatal(err)
	}
	u.drivers["swarm"] = swarm
	u.docker = &byDocker{byCLI: byCLI{m: u.matrix, force: true}, image: registry}
	u.docker.http.Transport = unixTransport(socket)
	u.drivers["docker"] = u.docker
	return u
}

// copiedPrograms copies the programs of a build to the test's file system, each with a text after its end.
func copiedPrograms(t *testing.T, from, end string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range replacedPrograms() {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), append(b, end...), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// replacedPrograms are the programs that run all the time.
func replacedPrograms() []string { return []string{"longshore", "longshore-keeper"} }

// install puts a build's programs in the place of the installed ones, as a package does. It links them: a client's process that is forked
// while a file is written has the descriptor, too, and nobody can execute a program that is open for writing.
func (u *upgrades) install(t *testing.T, build string) {
	t.Helper()
	for _, name := range replacedPrograms() {
		path := filepath.Join(u.bin, name)
		err := os.Link(filepath.Join(build, name), path+".new")
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// upgrade installs the other build and has the node become it.
func (u *upgrades) upgrade(i int) {
	u.t.Helper()
	u.install(u.t, u.builds[(i+1)%len(u.builds)])
	pid := u.n.Pid()
	u.clients.beginUpgrade()
	out, err := u.n.CLI("upgrade")
	if err != nil || !strings.Contains(out, "upgraded  agent\n") || !strings.Contains(out, "upgraded  keeper\n") || u.n.Pid() != pid {
		u.t.Errorf("upgrade %d: %q, %v", i+1, out, err)
	}
	if d := u.n.Finding(u.t, "programs"); !strings.Contains(d, "each from its installed file") {
		u.t.Errorf("after upgrade %d: %s", i+1, d)
	}
}

// writing is a script that writes numbered lines at a rate, and their number in the end.
func writing(rate int) string {
	return fmt.Sprintf(`pad=%s; while [ ${#pad} -lt %d ]; do pad=$pad$pad; done; i=0; trap 'stop=1' TERM
while [ -z "$stop" ]; do j=0; while [ $j -lt %d ]; do i=$((i+1)); j=$((j+1)); echo "@$i $pad"; done; sleep 1; done
echo "@END $i"; exit 7`, padSeed, len(linePad), max(1, rate/len(linePad)))
}

// linePad fills a line. Lines are long, because two hundred shells that write fifty thousand lines per second would use the processors
// that the node is measured on. The shells double padSeed, because long arguments would be in each list of containers.
var linePad = strings.Repeat(padSeed, 1<<9)

const padSeed = "0123456789abcdef"

// populate starts containers by all faces in turn, several at once.
func (u *upgrades) populate(count, rate int) {
	u.t.Helper()
	owners := slices.Sorted(maps.Keys(u.drivers))
	var group sync.WaitGroup
	for k, owner := range owners {
		var mine []*task
		for i := k; i < count; i += len(owners) {
			mine = append(mine, &task{owner: owner, name: fmt.Sprintf("%s-w%03d", owner, i)})
		}
		u.tasks = append(u.tasks, mine...)
		group.Go(func() {
			for _, k := range mine {
				if err := u.drivers[owner].start(k.name, writing(rate)); err != nil {
					u.t.Errorf("start %s: %v", k.name, err)
				}
			}
		})
	}
	group.Wait()
	if u.t.Failed() {
		u.t.FailNow()
	}
	m := facesMatrix{matrix: u.matrix}
	for _, k := range u.tasks {
		var r listed
		roottest.Eventually(u.t, k.name+" runs", func() bool {
			r, _ = m.record(k.name)
			return r.State == "running"
		})
		k.id, k.pid = r.ID, u.pidOf(r.ID)
		k.log.name, k.log.path = k.name, u.logPath(k)
		roottest.Eventually(u.t, "output of "+k.name, func() bool {
			k.log.read(u.t)
			return k.log.last > 0
		})
	}
}

// finish stops all containers, and compares their ends and their output with the expected ones.
func (u *upgrades) finish() {
	u.t.Helper()
	var group sync.WaitGroup
	for owner := range u.drivers {
		group.Go(func() {
			for _, k := range u.tasks {
				if k.owner != owner {
					continue
				}
				if r := u.pidOf(k.id); r != k.pid {
					u.t.Errorf("%s is process %d, and was %d", k.name, r, k.pid)
				}
				if err := u.drivers[owner].stop(k.name); err != nil {
					u.t.Errorf("stop %s: %v", k.name, err)
				}
				if code := u.drivers[owner].ended(k.name); code != 7 {
					u.t.Errorf("%s ended with %d, want 7", k.name, code)
				}
			}
		})
	}
	group.Wait()
	for _, k := range u.tasks {
		roottest.Eventually(u.t, "the last line of "+k.name, func() bool {
			k.log.read(u.t)
			return k.log.end > 0 || u.t.Failed()
		})
		if k.log.end != k.log.last {
			u.t.Errorf("the output of %s has %d lines, and the program has written %d", k.name, k.log.last, k.log.end)
		}
		u.drivers[k.owner].remove(k.name)
	}
}

// written returns how many bytes of output the containers have written. The caller is the only reader of the output.
func (u *upgrades) written() (bytes int64) {
	for _, k := range u.tasks {
		k.log.read(u.t)
		bytes += k.log.last * int64(len(linePad))
	}
	return bytes
}

// serve starts the clients.
func (u *upgrades) serve() {
	u.t.Helper()
	ctx, cancel := context.WithCancel(u.t.Context())
	u.clients.ctx, u.clients.cancel = ctx, cancel
	u.follow()
	u.connections()
	u.requests()
}

// follow reads the output of all containers all the time.
func (u *upgrades) follow() {
	u.clients.group.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for u.clients.ctx.Err() == nil {
			for _, k := range u.tasks {
				k.log.read(u.t)
			}
			select {
			case <-tick.C:
			case <-u.clients.ctx.Done():
			}
		}
	})
}
