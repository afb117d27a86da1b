package node

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestRepairBringsBack: when databases and volumes' records are damaged with their copies, the agent names the
// remedy, `longshore repair` applies it and names each object that it cannot bring back, and all others exist
// afterwards. `check --images` names damaged blobs and layers, and a pull mends them.
//
// It runs with LONGSHORE_DAMAGES only, with one round for each hundred of them.
func TestRepairBringsBack(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		rounds, err := strconv.Atoi(os.Getenv("LONGSHORE_DAMAGES"))
		if err != nil {
			t.Skip("it is one of make damages")
		}
		rounds = max(1, rounds/100)
		seed := rand.Uint64()
		d := &doublyDamaged{damaged: newDamaged(t), r: rand.New(rand.NewPCG(seed, 0))}
		t.Logf("%d rounds, seed %d", rounds, seed)
		image := d.n.Busybox(t)
		for round := range rounds {
			d.cli(t, "pull", image) // the damage of the last round may have taken the image's record
			for i := range 3 {
				d.cli(t, "create", "--name", "spare"+strconv.Itoa(round)+"-"+strconv.Itoa(i), image, "/bin/true")
			}
			for _, name := range []string{"live.db", "durable.db", "names.db"} {
				d.database(t, name)
			}
			d.volume(t)
		}
		t.Logf("%d objects were lost and named", d.lost)
		for _, id := range strings.Fields(d.cli(t, "ps", "-a", "-q", "--no-trunc")) {
			d.cli(t, "rm", "-f", "--force", id)
		}
		pods, err := d.n.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.GetItems() {
			if _, err := d.n.CRI.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
				t.Error(err)
			}
		}
		d.images(t, image) // no container holds a layer any more
		clean(t, d.n)
	})
}

type doublyDamaged struct {
	*damaged
	r    *rand.Rand
	lost int
}

func (d *doublyDamaged) cli(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.n.CLI(args...)
	if err != nil {
		t.Fatalf("longshore %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// objects lists the node's objects, each by the name that a repair uses.
func (d *doublyDamaged) objects(t *testing.T) (all []string) {
	t.Helper()
	all = strings.Fields(d.cli(t, "ps", "-a", "-q", "--no-trunc"))
	all = append(all, strings.Fields(d.cli(t, "volume", "ls", "-q"))...)
	images, err := d.n.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range images.GetImages() {
		for _, tag := range i.GetRepoTags() {
			all = append(all, tag+" "+i.GetId())
		}
	}
	pods, err := d.n.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.GetItems() {
		all = append(all, p.GetId())
	}
	slices.Sort(all)
	return all
}

// find returns the path of the one file of that name.
func (d *doublyDamaged) find(t *testing.T, name string) string {
	t.Helper()
	for _, f := range d.files(true) {
		if filepath.Base(f) == name {
			return f
		}
	}
	t.Fatalf("the node has no file %s", name)
	return ""
}

// hashes are of the files that a dry repair must leave as they are.
func hashes(t *testing.T, paths ...string) (sums []string) {
	t.Helper()
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, fmt.Sprintf("%x", sha256.Sum256(b)))
	}
	return sums
}

// repair runs a dry and a real repair, which must agree, and returns their output.
func (d *doublyDamaged) repair(t *testing.T, files ...string) string {
	t.Helper()
	args := []string{"repair", "--root", d.n.Root, "--state", d.n.State}
	before := hashes(t, files...)
	dry := d.cli(t, append(args, "--dry-run")...)
	if !slices.Equal(before, hashes(t, files...)) {
		t.Errorf("a dry repair has changed a file")
	}
	said := d.cli(t, args...)
	if dry != said {
		t.Errorf("a dry repair says\n%s\nand a repair\n%s", dry, said)
	}
	if again := d.cli(t, args...); strings.Contains(again, "damaged:") {
		t.Errorf("after the repair:\n%s", again)
	}
	return said
}

// database damages a database so that no page helps, and one place of its copy.
func (d *doublyDamaged) database(t *testing.T, name string) {
	t.Helper()
	path := d.find(t, name)
	before := d.objects(t)
	d.n.Kill()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	switch d.r.IntN(3) {
	case 0:
		clear(file)
	case 1:
		file = file[:d.r.IntN(os.Getpagesize())]
	default: // both meta pages
		clear(file[:2*os.Getpagesize()])
	}
	copied, err := os.ReadFile(path + ".copy")
	if err != nil {
		t.Fatal(err)
	}
	copied[d.r.IntN(len(copied))] ^= 1 << d.r.IntN(8)
	for p, b := range map[string][]byte{path: file, path + ".copy": copied} {
		if err := os.WriteFile(p, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	logged := d.logSize(t)
	d.n.Launch()
	if d.serves(t) {
		t.Fatalf("%s and its copy are damaged, and the agent serves:\n%s", name, d.logFrom(t, logged))
	}
	if said := d.logFrom(t, logged); !strings.Contains(said, name) || !strings.Contains(said, "longshore repair") || strings.Contains(said, "goroutine ") {
		t.Errorf("the agent says\n%s", said)
	}
	said := d.repair(t, path, path+".copy")
	if !strings.Contains(said, path+": damaged") {
		t.Errorf("the repair says\n%s", said)
	}
	d.n.Up()
	after := d.objects(t)
	for _, o := range before {
		if slices.Contains(after, o) {
			continue
		}
		d.lost++
		// A name may be lost alone: nothing else has it. Images are named by digest.
		tag, id, isImage := strings.Cut(o, " ")
		if isImage {
			o = id
			others := strings.Fields(d.cli(t, "images", "-q", "--no-trunc")) // of another owner
			if slices.Contains(others, id) || slices.ContainsFunc(after, func(a string) bool { return strings.HasSuffix(a, " "+id) }) {
				o = "names of images"
			}
		}
		if !strings.Contains(said, o) {
			t.Logf("the name %s", tag)
			t.Errorf("%s was lost with %s, and the repair did not name it:\n%s", o, name, said)
		}
	}
	for _, o := range after {
		if !slices.Contains(before, o) {
			t.Errorf("%s is new after the repair of %s", o, name)
		}
	}
	if n := len(before) - len(after); n > 4 {
		t.Errorf("%d objects are lost with one place of the copy of %s:\n%s", n, name, said)
	}
}

// volume damages the record of a volume, and its copy: the agent starts, says so, and has the volume
// with its content. That of a volume with options cannot be made again: it is named by `check`, and all
// others are in use.
func (d *doublyDamaged) volume(t *testing.T) {
	t.Helper()
	d.cli(t, "volume", "create", "-o", "type=tmpfs", "-o", "device=tmpfs", "memory")
	d.n.Kill()
	dirs := []string{filepath.Join(d.n.Root, "volumes", "cli", "data"), filepath.Join(d.n.Root, "volumes", "cli", "memory")}
	for _, dir := range dirs {
		for _, name := range []string{"volume.json", "volume.json.copy"} {
			if err := os.Truncate(filepath.Join(dir, name), int64(d.r.IntN(10))); err != nil {
				t.Fatal(err)
			}
		}
	}
	dry := d.cli(t, "repair", "--root", d.n.Root, "--state", d.n.State, "--dry-run")
	logged := d.logSize(t)
	d.n.Up()
	said := d.logFrom(t, logged)
	for _, dir := range dirs {
		if !strings.Contains(said, dir) || !strings.Contains(dry, dir) {
			t.Errorf("the agent says\n%s\nand a dry repair\n%s", said, dry)
		}
	}
	if got := d.cli(t, "volume", "ls", "-q"); strings.TrimSpace(got) != "data\nmemory" {
		t.Errorf("volumes %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(dirs[0], "_data", "file")); err != nil || string(b) != "kept\n" {
		t.Errorf("the volume's file has %q, %v", b, err)
	}
	if out, err := d.n.CLI("check"); err == nil || !strings.Contains(out+err.Error(), "volume cli/memory") {
		t.Errorf("check: %v\n%s", err, out)
	}
	if out, err := d.n.CLI("run", "--rm", "-v", "memory:/m", d.n.Busybox(t), "/bin/true"); err == nil || !strings.Contains(out+err.Error(), dirs[1]) {
		t.Errorf("a container with the damaged volume: %v\n%s", err, out)
	}
	d.cli(t, "volume", "prune", "-f")
	if _, err := os.Stat(filepath.Join(dirs[1], "volume.json")); err != nil {
		t.Errorf("after a prune: %v", err)
	}
	d.cli(t, "volume", "rm", "memory")
	// Objects lost by earlier damages may still be listed.
	if out, _ := d.n.CLI("check"); strings.Contains(out, "volume ") {
		t.Errorf("check:\n%s", out)
	}
}

// images damages a blob and a file of a layer.
func (d *doublyDamaged) images(t *testing.T, image string) {
	t.Helper()
	d.cli(t, "pull", image) // where its record was lost with names.db
	spoil := func(path string, at int) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[at] ^= 1
		if err := os.WriteFile(path, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	blobs, err := filepath.Glob(filepath.Join(d.n.Root, "image", "content", "blobs", "sha256", "*"))
	if err != nil || len(blobs) == 0 {
		t.Fatalf("no blobs: %v", err)
	}
	largest := slices.MaxFunc(blobs, func(a, b string) int {
		x, _ := os.ReadFile(a)
		y, _ := os.ReadFile(b)
		return len(x) - len(y)
	})
	spoil(largest, 300)
	layers, err := filepath.Glob(filepath.Join(d.n.Root, "image", "l", "*", "bin", "busybox"))
	if err != nil || len(layers) == 0 {
		t.Fatalf("no layers: %v", err)
	}
	for _, l := range layers { // one of them is of no image, after a repair
		spoil(l, 5000)
	}
	out, err := d.n.CLI("check", "--images")
	for _, want := range []string{filepath.Base(largest), "bin/busybox"} {
		if err == nil || !strings.Contains(out+err.Error(), want) {
			t.Errorf("check --images does not name %s: %v\n%s", want, err, out)
		}
	}
	d.cli(t, "pull", image)
	if _, err := d.n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
		t.Error(err)
	}
	if out, err := d.n.CLI("check", "--images"); err != nil {
		t.Errorf("after a pull: %v\n%s", err, out)
	}
	want, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	if got := d.cli(t, "run", "--rm", image, "cat", "/bin/busybox"); !bytes.Equal([]byte(got), want) {
		t.Errorf("the layer's file has %d bytes and is not what was pulled", len(got))
	}
}
