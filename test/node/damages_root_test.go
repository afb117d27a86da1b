package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// damages are the ways to spoil a file.
func damages(r *rand.Rand) map[string]func(b []byte) []byte {
	return map[string]func([]byte) []byte{
		"emptied": func([]byte) []byte { return nil },
		"cut":     func(b []byte) []byte { return b[:r.IntN(len(b))] },
		"halved":  func(b []byte) []byte { return b[:len(b)/2] },
		"zeroed":  func(b []byte) []byte { return make([]byte, len(b)) },
		"zeroed in part": func(b []byte) []byte {
			from := r.IntN(len(b))
			clear(b[from:min(len(b), from+4096)])
			return b
		},
		"one bit": func(b []byte) []byte {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			return b
		},
		"one bit of a page's head": func(b []byte) []byte {
			at := min(r.IntN(len(b)/4096+1)*4096+r.IntN(64), len(b)-1)
			b[at] ^= 1 << r.IntN(8)
			return b
		},
	}
}

// TestDamagedFiles: after a file of its two directories was spoiled, while containers run, the
// agent starts again, or names the file and the remedy, and never ends in a stack trace. Then,
// after `longshore repair` if it has asked for that, it knows all that it knew before.
//
// LONGSHORE_DAMAGES is the number of cases, of all files: first one file of each class is cut, zeroed,
// and has a bit flipped. By default each file of records is damaged once. The content of images,
// containers and volumes, which is not the agent's, is not damaged (`check --images` is for images), nor
// are empty files, sockets, fifos and mounts.
func TestDamagedFiles(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		d := newDamaged(t)
		cases, all := 10, os.Getenv("LONGSHORE_DAMAGES")
		if all != "" {
			var err error
			if cases, err = strconv.Atoi(all); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d cases, seed %d", cases, seed)
		hows := damages(r)
		var names []string
		for name := range hows {
			names = append(names, name)
		}
		slices.Sort(names)
		done := 0
		if all != "" {
			classes := map[string]string{}
			for _, file := range d.files(false) {
				classes[d.class(file)] = file
			}
			sorted := slices.Sorted(maps.Keys(classes))
			t.Logf("%d classes of files: %s", len(classes), strings.Join(sorted, " "))
			for _, part := range classNeeds {
				if !slices.ContainsFunc(sorted, func(c string) bool { return strings.Contains(c, part) }) {
					t.Errorf("the workload has made no file of %s", part)
				}
			}
			for _, class := range sorted {
				for _, how := range []string{"cut", "zeroed", "one bit"} {
					d.try(t, classes[class], how, hows[how])
					done++
				}
			}
		}
		for done < cases {
			files := d.files(all == "")
			r.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
			for _, file := range files {
				if done++; done > cases {
					break
				}
				name := names[r.IntN(len(names))]
				d.try(t, file, name, hows[name])
			}
		}
		t.Logf("%d starts by themselves, of which %d made a file again; %d after a repair", d.started, d.healed, d.repaired)
		// The containers can still be stopped, started and removed.
		for _, args := range [][]string{{"stop", "-t", "0", "web"}, {"start", "web"}, {"start", "ended"}, {"rm", "-f", "web", "ended", "named", "checked", "made"}, {"network", "rm", "app"}, {"rmi", "made:1"}} {
			if _, err := d.n.CLI(args...); err != nil {
				t.Error(err)
			}
		}
		d.pod.Remove(t)
		clean(t, d.n)
	})
}

// classNeeds are parts of classes that the workload must have made, so that the test does not
// become empty when a file gets another name.
var classNeeds = []string{
	"live.db", "live.db.copy", "durable.db", "durable.db.copy", "names.db", "names.db.copy", "events.log", "boot", "volume.json", "volume.json.copy",
	"image/content/blobs", "image/sums", "checkouts", "bundles", "runtime/native", "keeper/pair-*/journal", "names/", "logs/",
}

// class is a file's path without names of single objects.
func (d *damaged) class(file string) string {
	rel, err := filepath.Rel(d.n.Dir, file)
	if err != nil {
		return file
	}
	return single.ReplaceAllString(rel, "*")
}

var single = regexp.MustCompile(`[0-9a-f]{12,}|[0-9]+`)

// damaged is a node with damaged files.
type damaged struct {
	n                         *nodetest.Node
	pod                       *nodetest.Pod
	before                    string // the first sight
	events                    []nodetest.Event
	started, healed, repaired int
}

func newDamaged(t *testing.T) *damaged {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n"})
	image := n.Busybox(t)
	d := &damaged{n: n}
	d.pod = n.RunPod(t, n.PodConfig("pod"))
	d.pod.Run(t, nodetest.ContainerConfig("sleeper", image, "/bin/sleep", "100000"))
	for _, args := range [][]string{
		{"volume", "create", "data"},
		{"run", "-d", "--name", "web", "-v", "data:/data", image, "/bin/sh", "-c", "echo kept > /data/file; exec sleep 100000"},
		{"run", "-d", "--name", "ended", image, "/bin/sh", "-c", "echo said; exit 3"},
		{"tag", image, "registry.example/other:name"},
		{"network", "create", "app"},
		{"run", "-d", "--name", "named", "--network", "app", "--init", "-e", "A=b", "--label", "l=m", "-p", "127.0.0.1::80", image, "sleep", "100000"},
		{"run", "-d", "--name", "checked", "--health-cmd", "true", "--memory", "64m", "--read-only", image, "sleep", "100000"},
		{"create", "--name", "made", image, "true"},
		{"commit", "ended", "made:1"},
		{"wait", "ended"},
	} {
		if _, err := n.CLI(args...); err != nil {
			t.Fatal(err)
		}
	}
	d.before, d.events = d.sight(t), n.Events()
	return d
}

// records match the files that keep the agent's state.
var records = regexp.MustCompile(`(live\.db|durable\.db|names\.db|events\.log|/boot|volume\.json)(\.copy)?$`)

// contents are files that are not the agent's records: those of images, containers and volumes.
var contents = regexp.MustCompile(`/image/l/|/checkouts/[^/]*/(upper|work)/|/_data/`)

// files lists the node's files, but for empty ones.
func (d *damaged) files(onlyRecords bool) (list []string) {
	for _, dir := range []string{d.n.Root, d.n.State} {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // what has just gone is not damaged
			}
			fi, err := e.Info()
			switch {
			case err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 || strings.Contains(path, ".damaged") || contents.MatchString(path):
			case onlyRecords && !records.MatchString(path):
			default:
				list = append(list, path)
			}
			if e.IsDir() && (e.Name() == "rootfs" || e.Name() == "ns" || e.Name() == "merged") {
				return filepath.SkipDir // mounts
			}
			return nil
		})
	}
	return list
}

// sight is the node's state, as its users see it.
func (d *damaged) sight(t *testing.T) string {
	t.Helper()
	var all []string
	for _, args := range [][]string{{"ps", "-a", "-q", "--no-trunc"}, {"ps", "-q", "--no-trunc"}, {"volume", "ls", "--json"}, {"network", "ls", "-q"}, {"images", "-q", "--no-trunc"}, {"check"}, {"exec", "web", "cat", "/data/file"}} {
		out, err := d.n.CLI(args...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		slices.Sort(lines)
		all = append(all, fmt.Sprintf("%v: %v %v", args, lines, err))
	}
	images, err := d.n.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{}, grpc.WaitForReady(true))
	for _, i := range images.GetImages() {
		all = append(all, fmt.Sprint("image ", i.GetId(), i.GetRepoTags(), i.GetRepoDigests(), err))
	}
	pods, err := d.n.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	for _, p := range pods.GetItems() {
		st, serr := d.n.CRI.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()})
		all = append(all, fmt.Sprint("pod ", p.GetId(), p.GetState(), st.GetStatus().GetNetwork().GetIp(), err, serr))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// try is one case.
func (d *damaged) try(t *testing.T, file, name string, how func([]byte) []byte) {
	t.Helper()
	d.n.Kill()
	whole, err := os.ReadFile(file)
	if err != nil || len(whole) == 0 {
		d.n.Up()
		return // it went with the agent
	}
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, how(slices.Clone(whole)), 0); err != nil {
		t.Fatal(err)
	}
	logged := d.logSize(t)
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s %s: %s\n%s", file, name, fmt.Sprintf(format, args...), d.logFrom(t, logged))
	}
	d.n.Launch()
	if d.serves(t) {
		d.started++
		if strings.Contains(d.logFrom(t, logged), "made again") {
			d.healed++
		}
	} else {
		d.repaired++
		if said := d.logFrom(t, logged); !strings.Contains(said, filepath.Base(file)) || !strings.Contains(said, "longshore repair") {
			fail("the agent does not start, and does not say what to do")
		}
		out, err := d.n.CLI("repair", "--root", d.n.Root, "--state", d.n.State)
		if err != nil {
			fail("repair: %v\n%s", err, out)
		}
		d.n.Up()
	}
	said := d.logFrom(t, logged)
	if strings.Contains(said, "goroutine ") || strings.Contains(said, "panic:") || strings.Contains(said, "fatal error:") || strings.Contains(said, "SIGBUS") {
		fail("a stack trace")
	}
	now, before := d.sight(t), d.before
	if strings.Contains(file, "/bundles/") || strings.Contains(file, "/runtime/native/") {
		// This is one container's own. It runs on; only an exec in it may fail.
		now, before = withoutLine(now, "[exec"), withoutLine(before, "[exec")
	}
	if now != before {
		fail("the node knows\n%s\nand knew before\n%s", now, d.before)
	}
	events := map[uint64]nodetest.Event{}
	for _, e := range d.n.Events() {
		events[e.Seq] = e
	}
	for _, e := range d.events {
		if events[e.Seq] != e {
			fail("event %d is %+v, and was %+v", e.Seq, events[e.Seq], e)
			break
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	if records.MatchString(file) {
		return // it has been mended
	}
	// A file that the agent cannot mend is put back.
	d.n.Kill()
	if _, err := os.Stat(file); err == nil {
		if err := errors.Join(os.WriteFile(file, whole, 0), os.Chtimes(file, st.ModTime(), st.ModTime())); err != nil {
			t.Fatal(err)
		}
	}
	d.n.Up()
}

// serves waits until the agent serves, or has ended.
func (d *damaged) serves(t *testing.T) (serves bool) {
	t.Helper()
	nodetest.Eventually(t, "the agent serves or ends", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.n.Pid()))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			d.n.Died()
			return true
		}
		_, err = d.n.CRI.Version(t.Context(), &runtimeapi.VersionRequest{})
		serves = err == nil
		return serves
	})
	return serves
}

func (d *damaged) logSize(t *testing.T) int64 {
	t.Helper()
	st, err := os.Stat(filepath.Join(d.n.Dir, "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func (d *damaged) logFrom(t *testing.T, from int64) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(d.n.Dir, "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b[from:])
}
