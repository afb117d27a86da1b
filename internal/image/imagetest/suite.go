package imagetest

import (
	"bytes"
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
)

// Store is an implementation of core.Images, of core.ImageTransfers and of marks that keep images
// from collection.
type Store interface {
	core.Images
	core.ImageTransfers
	Pin(ctx context.Context, owner core.Owner, ref string, pinned bool) error
}

// Harness is an empty Store under test.
type Harness struct {
	Images Store
	// Provide makes an image pullable under repo:tag and returns its full name,
	// registry included.
	Provide func(repo, tag string, b Built) string
}

// The owners that the suite uses.
const (
	ownerA core.Owner = "cri"
	ownerB core.Owner = "nomad"
)

// sample is a small image; n makes it differ from others.
func sample(n string) Built {
	return Image{
		Layers: [][]File{{{Name: "etc/"}, {Name: "etc/name", Body: []byte(n)}}},
		Config: ocispec.ImageConfig{Cmd: []string{"/bin/" + n}, Labels: map[string]string{"n": n}},
	}.Build()
}

// Suite is the contract of core.Images: how names, IDs, pinned marks and checkouts behave. It
// does not test how content is transferred.
func Suite(t *testing.T, start func(t *testing.T) Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"PullGivesNamesAndConfig":      pullGivesNamesAndConfig,
		"PullGivesDockersConfig":       pullGivesDockersConfig,
		"PullTwiceIsOneImage":          pullTwice,
		"GetFindsByEveryForm":          getForms,
		"GetOfNothingIsNotFound":       getNothing,
		"OwnersDoNotSeeEachOther":      ownersAreSeparate,
		"TagAddsAName":                 tagAdds,
		"TagMovesAName":                tagMoves,
		"TagWithoutATargetKeeps":       tagKeeps,
		"RemoveByNameLeavesOtherNames": removeByName,
		"RemoveByIDTakesAllNames":      removeByID,
		"PruneSparesPinnedAndKept":     prune,
		"CheckoutIsPerContainer":       checkouts,
		"CheckoutOutlivesTheName":      checkoutOutlives,
		"DiscardIsIdempotent":          discard,
		"ExportThenImport":             exportImport,
		"ImportOfOneImage":             importOne,
		"ImportOfARoot":                importRoot,
		"ResolveStoresNothing":         resolve,
		"TagsOfARepository":            listTags,
	} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

// SuiteWithout tests a store that has no images against the parts of the contract about missing
// images.
func SuiteWithout(t *testing.T, images core.Images) {
	t.Helper()
	if got, err := images.List(t.Context(), ""); err != nil || len(got) != 0 {
		t.Errorf("images %v, %v", got, err)
	}
	if freed, err := images.Prune(t.Context(), ownerA, nil); err != nil || freed != 0 {
		t.Errorf("pruned %d bytes, %v", freed, err)
	}
	nothingCheckedOut(t, images)
}

func nothingCheckedOut(t *testing.T, images core.Images) {
	t.Helper()
	for range 2 {
		if err := images.Discard(t.Context(), "c1"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := images.Checkouts(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("checkouts %v, %v", got, err)
	}
	_, err := images.RootStats(t.Context(), "c1")
	wantNotFound(t, "root stats", err)
}

func pull(t *testing.T, h Harness, owner core.Owner, ref string) core.Image {
	t.Helper()
	img, err := h.Images.Pull(t.Context(), owner, ref, core.PullOptions{})
	if err != nil {
		t.Fatalf("pull %s: %v", ref, err)
	}
	return img
}

func list(t *testing.T, h Harness, owner core.Owner) []core.Image {
	t.Helper()
	l, err := h.Images.List(t.Context(), owner)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return l
}

func wantNotFound(t *testing.T, what string, err error) {
	t.Helper()
	if !errdefs.IsNotFound(err) {
		t.Errorf("%s: %v, want NotFound", what, err)
	}
}

func pullGivesNamesAndConfig(t *testing.T, h Harness) {
	b := sample("one")
	ref := h.Provide("team/one", "v1", b)
	img := pull(t, h, ownerA, ref)
	if img.ID != b.ID {
		t.Errorf("ID %s, want the config's digest %s", img.ID, b.ID)
	}
	if !slices.Equal(img.Names, []string{ref}) {
		t.Errorf("names %v, want %s", img.Names, ref)
	}
	if len(img.Digests) != 1 {
		t.Errorf("digests %v, want one", img.Digests)
	}
	if !slices.Equal(img.Config.Config.Cmd, []string{"/bin/one"}) {
		t.Errorf("config has command %v", img.Config.Config.Cmd)
	}
	if img.Size <= 0 || img.Pinned || img.Pulled.IsZero() {
		t.Errorf("size %d, pinned %v, pulled %v", img.Size, img.Pinned, img.Pulled)
	}
}

// pullGivesDockersConfig: Docker's members of a config besides OCI's are not lost.
func pullGivesDockersConfig(t *testing.T, h Harness) {
	health := &core.HealthCheck{Test: []string{"CMD-SHELL", "check"}, Interval: 5 * time.Second, Retries: 2, StartPeriod: time.Minute}
	built := Image{Config: ocispec.ImageConfig{Cmd: []string{"/bin/one"}}, Health: health, Shell: []string{"/bin/bash", "-c"}}.Build()
	img := pull(t, h, ownerA, h.Provide("team/checked", "v1", built))
	if !reflect.DeepEqual(img.Health, health) || !slices.Equal(img.Shell, []string{"/bin/bash", "-c"}) {
		t.Errorf("health %+v, shell %q", img.Health, img.Shell)
	}
	if !slices.Equal(img.Config.Config.Cmd, []string{"/bin/one"}) {
		t.Errorf("config has command %v", img.Config.Config.Cmd)
	}
	got, err := h.Images.Get(t.Context(), ownerA, img.ID.String())
	if err != nil || !reflect.DeepEqual(got.Health, health) {
		t.Errorf("get: health %+v, %v", got.Health, err)
	}
	if plain := pull(t, h, ownerA, h.Provide("team/one", "v1", sample("one"))); plain.Health != nil || plain.Shell != nil {
		t.Errorf("an image without: health %+v, shell %q", plain.Health, plain.Shell)
	}
}

func pullTwice(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	first := pull(t, h, ownerA, ref)
	img, err := h.Images.Pull(t.Context(), ownerA, ref, core.PullOptions{Always: true, Pin: true})
	if err != nil {
		t.Fatal(err)
	}
	if img.ID != first.ID || !img.Pinned {
		t.Errorf("second pull gives %s pinned %v, want %s pinned", img.ID, img.Pinned, first.ID)
	}
	if l := list(t, h, ownerA); len(l) != 1 {
		t.Errorf("%d images, want one", len(l))
	}
}

func getForms(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	img := pull(t, h, ownerA, ref)
	forms := []string{ref, img.ID.String(), img.ID.Encoded(), img.ID.Encoded()[:12]}
	forms = append(forms, img.Digests...)
	for _, form := range forms {
		got, err := h.Images.Get(t.Context(), ownerA, form)
		if err != nil || got.ID != img.ID {
			t.Errorf("get %s: %s, %v", form, got.ID, err)
		}
	}
}

func getNothing(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	pull(t, h, ownerA, ref)
	for _, form := range []string{"team/absent:v1", ref + "x", sample("two").ID.String(), sample("two").ID.Encoded()} {
		_, err := h.Images.Get(t.Context(), ownerA, form)
		wantNotFound(t, "get "+form, err)
	}
	wantNotFound(t, "remove", h.Images.Remove(t.Context(), ownerA, "team/absent"))
	wantNotFound(t, "tag", h.Images.Tag(t.Context(), ownerA, "team/absent", "team/new"))
	wantNotFound(t, "pin", h.Images.Pin(t.Context(), ownerA, "team/absent", true))
	_, err := h.Images.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: sample("two").ID})
	wantNotFound(t, "checkout", err)
	_, err = h.Images.RootStats(t.Context(), "c1")
	wantNotFound(t, "root stats", err)
	if _, err := h.Images.Get(t.Context(), ownerA, "Not A Name"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("get of a malformed name: %v, want InvalidArgument", err)
	}
}

func ownersAreSeparate(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	img := pull(t, h, ownerA, ref)
	_, err := h.Images.Get(t.Context(), ownerB, ref)
	wantNotFound(t, "other owner's get", err)
	wantNotFound(t, "other owner's remove", h.Images.Remove(t.Context(), ownerB, img.ID.String()))
	if l := list(t, h, ownerB); len(l) != 0 {
		t.Errorf("other owner lists %v", l)
	}
	pull(t, h, ownerB, ref)
	if err := h.Images.Remove(t.Context(), ownerA, ref); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Images.Get(t.Context(), ownerB, ref); err != nil {
		t.Errorf("other owner's image went with ours: %v", err)
	}
	if l := list(t, h, ""); len(l) != 1 {
		t.Errorf("all owners: %d images, want one", len(l))
	}
	if _, err := h.Images.Prune(t.Context(), ownerA, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Images.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: img.ID}); err != nil {
		t.Errorf("a prune took the other owner's content: %v", err)
	}
}

func tagAdds(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	img := pull(t, h, ownerA, ref)
	for _, target := range []string{"mine:v2", "mine:v2"} { // twice is once
		if err := h.Images.Tag(t.Context(), ownerA, ref, target); err != nil {
			t.Fatal(err)
		}
	}
	got, err := h.Images.Get(t.Context(), ownerA, "mine:v2")
	if err != nil || got.ID != img.ID {
		t.Fatalf("get by tag: %s, %v", got.ID, err)
	}
	want := []string{ref, "docker.io/library/mine:v2"}
	slices.Sort(want)
	if !slices.Equal(got.Names, want) {
		t.Errorf("names %v, want %v", got.Names, want)
	}
	if err := h.Images.Tag(t.Context(), ownerA, img.ID.String(), "by/id"); err != nil {
		t.Errorf("tag by ID: %v", err)
	}
	if err := h.Images.Tag(t.Context(), ownerA, ref, "UPPER"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("tag with a malformed name: %v, want InvalidArgument", err)
	}
}

func tagMoves(t *testing.T, h Harness) {
	one := pull(t, h, ownerA, h.Provide("team/one", "v1", sample("one")))
	two := pull(t, h, ownerA, h.Provide("team/two", "v1", sample("two")))
	for _, id := range []string{one.ID.String(), two.ID.String()} {
		if err := h.Images.Tag(t.Context(), ownerA, id, "current"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := h.Images.Get(t.Context(), ownerA, "current")
	if err != nil || got.ID != two.ID {
		t.Errorf("current is %s, %v; want %s", got.ID, err, two.ID)
	}
	if l := list(t, h, ownerA); len(l) != 2 {
		t.Errorf("%d images, want both", len(l))
	}
}

// tagKeeps: an image that is kept outlives its names, and is removed by its ID.
func tagKeeps(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	img := pull(t, h, ownerA, ref)
	if err := h.Images.Tag(t.Context(), ownerA, ref, ""); err != nil {
		t.Fatal(err)
	}
	if err := h.Images.Remove(t.Context(), ownerA, ref); err != nil {
		t.Fatal(err)
	}
	got, err := h.Images.Get(t.Context(), ownerA, img.ID.String())
	if err != nil || len(got.Names) != 0 {
		t.Errorf("without its name: %v, %v", got.Names, err)
	}
	if err := h.Images.Remove(t.Context(), ownerA, img.ID.String()); err != nil {
		t.Fatal(err)
	}
	_, err = h.Images.Get(t.Context(), ownerA, img.ID.String())
	wantNotFound(t, "a kept image after its removal", err)
}

func removeByName(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	img := pull(t, h, ownerA, ref)
	if err := h.Images.Tag(t.Context(), ownerA, ref, "mine"); err != nil {
		t.Fatal(err)
	}
	if err := h.Images.Remove(t.Context(), ownerA, ref); err != nil {
		t.Fatal(err)
	}
	_, err := h.Images.Get(t.Context(), ownerA, ref)
	wantNotFound(t, "get of the removed name", err)
	if got, err := h.Images.Get(t.Context(), ownerA, "mine"); err != nil || got.ID != img.ID {
		t.Errorf("other name: %s, %v", got.ID, err)
	}
	if err := h.Images.Remove(t.Context(), ownerA, "mine"); err != nil {
		t.Fatal(err)
	}
	if l := list(t, h, ownerA); len(l) != 0 {
		t.Errorf("without a name there is still %v", l)
	}
}

func removeByID(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	img := pull(t, h, ownerA, ref)
	if err := h.Images.Tag(t.Context(), ownerA, ref, "mine"); err != nil {
		t.Fatal(err)
	}
	if err := h.Images.Remove(t.Context(), ownerA, img.ID.String()); err != nil {
		t.Fatal(err)
	}
	if l := list(t, h, ownerA); len(l) != 0 {
		t.Errorf("there is still %v", l)
	}
	wantNotFound(t, "second remove", h.Images.Remove(t.Context(), ownerA, img.ID.String()))
}

func prune(t *testing.T, h Harness) {
	pinned := pull(t, h, ownerA, h.Provide("team/pinned", "v1", sample("pinned")))
	kept := pull(t, h, ownerA, h.Provide("team/kept", "v1", sample("kept")))
	pull(t, h, ownerA, h.Provide("team/gone", "v1", sample("gone")))
	if err := h.Images.Pin(t.Context(), ownerA, pinned.ID.String(), true); err != nil {
		t.Fatal(err)
	}
	keep := func(i core.Image) bool { return i.ID == kept.ID }
	if _, err := h.Images.Prune(t.Context(), ownerA, keep); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, i := range list(t, h, ownerA) {
		left = append(left, i.ID.String())
	}
	want := []string{pinned.ID.String(), kept.ID.String()}
	slices.Sort(want)
	slices.Sort(left)
	if !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	if err := h.Images.Pin(t.Context(), ownerA, pinned.ID.String(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Images.Prune(t.Context(), ownerA, nil); err != nil {
		t.Fatal(err)
	}
	if l := list(t, h, ownerA); len(l) != 0 {
		t.Errorf("prune of all leaves %v", l)
	}
}

func checkouts(t *testing.T, h Harness) {
	img := pull(t, h, ownerA, h.Provide("team/one", "v1", sample("one")))
	for _, c := range []core.ID{"c1", "c2"} {
		co, err := h.Images.Checkout(t.Context(), core.CheckoutRequest{Container: c, Image: img.ID})
		if err != nil {
			t.Fatal(err)
		}
		if len(co.Mounts) == 0 || !slices.Equal(co.Config.Config.Cmd, []string{"/bin/one"}) {
			t.Errorf("checkout %s: %+v", c, co)
		}
		if st, err := h.Images.RootStats(t.Context(), c); err != nil || !st.Inodes.OK {
			t.Errorf("root stats of %s: %+v, %v", c, st, err)
		}
	}
	got, err := h.Images.Checkouts(t.Context())
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []core.ID{"c1", "c2"}) {
		t.Errorf("checkouts %v, %v", got, err)
	}
}

func checkoutOutlives(t *testing.T, h Harness) {
	img := pull(t, h, ownerA, h.Provide("team/one", "v1", sample("one")))
	req := core.CheckoutRequest{Container: "c1", Image: img.ID}
	first, err := h.Images.Checkout(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Images.Remove(t.Context(), ownerA, img.ID.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Images.Prune(t.Context(), ownerA, nil); err != nil {
		t.Fatal(err)
	}
	again, err := h.Images.Checkout(t.Context(), req)
	if err != nil {
		t.Fatalf("same checkout again: %v", err)
	}
	if len(again.Mounts) != len(first.Mounts) || again.Mounts[0].Source != first.Mounts[0].Source {
		t.Errorf("same checkout gives %v, first gave %v", again.Mounts, first.Mounts)
	}
}

func discard(t *testing.T, h Harness) {
	img := pull(t, h, ownerA, h.Provide("team/one", "v1", sample("one")))
	if _, err := h.Images.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: img.ID}); err != nil {
		t.Fatal(err)
	}
	nothingCheckedOut(t, h.Images)
}

// importOne: the image can be found by its ID, and has no name.
func importOne(t *testing.T, h Harness) {
	one, two := h.Provide("team/one", "v1", sample("one")), h.Provide("team/two", "v1", sample("two"))
	want := pull(t, h, ownerA, two)
	pull(t, h, ownerA, one)
	var archive bytes.Buffer
	if err := h.Images.Export(t.Context(), ownerA, []string{one, two}, &archive); err != nil {
		t.Fatal(err)
	}
	got, err := h.Images.Import(t.Context(), ownerB, bytes.NewReader(archive.Bytes()), core.ImportOptions{Only: two})
	if err != nil || len(got) != 1 || got[0].ID != want.ID || len(got[0].Names) != 0 {
		t.Fatalf("imported %+v, %v; want %s without a name", got, err, want.ID)
	}
	for _, ref := range []string{one, two} {
		_, err := h.Images.Get(t.Context(), ownerB, ref)
		wantNotFound(t, "an image by the archive's name for it", err)
	}
	if img, err := h.Images.Get(t.Context(), ownerB, string(want.ID)); err != nil || img.ID != want.ID {
		t.Errorf("by its id: %v, %v", img.ID, err)
	}
	_, err = h.Images.Import(t.Context(), ownerB, bytes.NewReader(archive.Bytes()), core.ImportOptions{Only: "team/absent"})
	wantNotFound(t, "import of an image that the archive has not", err)
}

// importRoot: a tar becomes an image with the name asked for.
func importRoot(t *testing.T, h Harness) {
	root := Tar([]File{{Name: "etc/", Body: nil}, {Name: "etc/motd", Body: []byte("hello")}})
	img, err := h.Images.ImportRoot(t.Context(), ownerA, bytes.NewReader(root), core.RootImport{Name: "team/root:v1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(img.Names) != 1 || !strings.HasSuffix(img.Names[0], "team/root:v1") {
		t.Errorf("names %v, want team/root:v1", img.Names)
	}
	got, err := h.Images.Get(t.Context(), ownerA, "team/root:v1")
	if err != nil || got.ID != img.ID {
		t.Errorf("by its name: %s, %v, want %s", got.ID, err, img.ID)
	}
	if _, err := h.Images.ImportRoot(t.Context(), ownerA, bytes.NewReader(root), core.RootImport{Name: "Bad Name"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("import under a name that is none: %v, want InvalidArgument", err)
	}
}

// resolve: a registry describes the image of a name, and the store keeps nothing of it.
func resolve(t *testing.T, h Harness) {
	ref := h.Provide("team/remote", "v1", sample("remote"))
	remote, err := h.Images.Resolve(t.Context(), ref, core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Images.Get(t.Context(), ownerA, ref)
	wantNotFound(t, "an image that was only resolved", err)
	img := pull(t, h, ownerA, ref)
	if remote.Target.Digest != img.Digest || len(remote.Platforms) != 1 || remote.Platforms[0].Architecture != img.Config.Architecture {
		t.Errorf("resolved %+v, pulled %s %s", remote, img.Digest, img.Config.Architecture)
	}
	_, err = h.Images.Resolve(t.Context(), strings.Replace(ref, "remote", "absent", 1), core.PullOptions{})
	wantNotFound(t, "resolve of nothing", err)
}

// listTags: a registry lists the tags of a repository.
func listTags(t *testing.T, h Harness) {
	ref := h.Provide("team/tags", "v1", sample("tags"))
	h.Provide("team/tags", "v2", sample("tags2"))
	repo := strings.TrimSuffix(ref, ":v1")
	tags, err := h.Images.Tags(t.Context(), repo, core.PullOptions{})
	if slices.Sort(tags); err != nil || !slices.Equal(tags, []string{"v1", "v2"}) {
		t.Errorf("tags %q, %v, want v1 and v2", tags, err)
	}
	_, err = h.Images.Tags(t.Context(), repo+"-absent", core.PullOptions{})
	wantNotFound(t, "tags of nothing", err)
}

func exportImport(t *testing.T, h Harness) {
	ref := h.Provide("team/one", "v1", sample("one"))
	img := pull(t, h, ownerA, ref)
	var archive bytes.Buffer
	if err := h.Images.Export(t.Context(), ownerA, []string{ref}, &archive); err != nil {
		t.Fatal(err)
	}
	got, err := h.Images.Import(t.Context(), ownerB, &archive, core.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].ID != img.ID || !slices.Equal(got[0].Names, []string{ref}) {
		t.Errorf("imported %+v, want %s", got, img.ID)
	}
	if _, err := h.Images.Get(t.Context(), ownerB, ref); err != nil {
		t.Error(err)
	}
	wantNotFound(t, "export of nothing", h.Images.Export(t.Context(), ownerA, []string{"team/absent"}, &archive))
	if _, err := h.Images.Import(t.Context(), ownerB, bytes.NewReader([]byte("no archive at all")), core.ImportOptions{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("import of rubbish: %v, want InvalidArgument", err)
	}
}
