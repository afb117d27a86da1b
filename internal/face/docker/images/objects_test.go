package images_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/ulikunitz/xz"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/docker/images"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// tags lists the images' tags.
func (r *rig) tags(query string) (list []string) {
	r.t.Helper()
	var sums []dockertypes.ImageSummary
	r.want(200, "GET", "/images/json?"+query, nil, &sums)
	for _, s := range sums {
		list = append(list, s.RepoTags...)
	}
	slices.Sort(list)
	return list
}

func filters(text string) string { return "filters=" + url.QueryEscape(text) }

func TestList(t *testing.T) {
	r := newRig(t)
	if text := r.want(200, "GET", "/images/json", nil, nil); text != "[]\n" {
		t.Errorf("without images: %q", text)
	}
	a, built := r.pulled("lib/a")
	b, _ := r.pulled("b")
	r.want(201, "POST", "/images/"+a+"/tag?repo=nginx", nil, nil)
	r.uses(images.User{ID: "c1", Image: built.ID}, images.User{ID: "c2", Image: built.ID})
	var list []dockertypes.ImageSummary
	r.want(200, "GET", "/images/json?shared-size=1", nil, &list)
	i := slices.IndexFunc(list, func(s dockertypes.ImageSummary) bool { return s.ID == built.ID.String() })
	if len(list) != 2 || i < 0 {
		t.Fatalf("%+v", list)
	}
	if s := list[i]; s.Containers != 2 || s.SharedSize < 1<<16 || s.Size <= s.SharedSize || s.Labels["n"] != "lib/a" || s.VirtualSize != 0 ||
		!slices.Equal(s.RepoTags, []string{a, "nginx:latest"}) && !slices.Equal(s.RepoTags, []string{"nginx:latest", a}) || len(s.RepoDigests) != 1 {
		t.Errorf("%+v", s)
	}
	r.want(200, "GET", "/v1.43/images/json", nil, &list)
	if s := list[i]; s.Containers != -1 || s.SharedSize != -1 || s.VirtualSize != s.Size {
		t.Errorf("before 1.44: %+v", s)
	}
	for query, want := range map[string][]string{
		filters(`{"reference":["nginx"]}`):                      {"nginx:latest"},
		filters(`{"reference":{"ngin*:lat*":true}}`):            {"nginx:latest"},
		filters(`{"reference":["*/lib/*"]}`):                    {a},
		filters(`{"reference":["docker.io/library/nginx"]}`):    {"nginx:latest"},
		filters(`{"reference":["docker.io/library/ngin*:l*"]}`): {"nginx:latest"},
		filters(`{"label":["n=b"]}`):                            {b},
		filters(`{"label!":["n=b"]}`):                           {a, "nginx:latest"},
		filters(`{"dangling":["true"]}`):                        nil,
		filters(`{"until":["2000-01-01"]}`):                     {a, b, "nginx:latest"}, // they do not say when they were made
		filters(`{"reference":["nginx"],"label":["n=b"]}`):      nil,
	} {
		slices.Sort(want)
		if got := r.tags(query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if text := r.want(200, "GET", "/v1.40/images/json?filter=nginx", nil, nil); strings.Count(text, `"Id"`) != 1 {
		t.Errorf("with the old filter: %s", text)
	}
	r.refused(400, "GET", "/images/json?"+filters(`{"name":["x"]}`), "invalid filter 'name'")
	r.refused(400, "GET", "/images/json?"+filters(`{"reference":["["]}`), "invalid filter")
	r.refused(400, "GET", "/images/json?"+filters(`{"dangling":["maybe"]}`), "invalid filter")
	r.refused(404, "GET", "/images/json?"+filters(`{"since":["absent"]}`), "No such image: absent:latest")
}

func TestInspect(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	r.want(201, "POST", "/images/"+name+"/tag?repo=nginx&tag=v2", nil, nil)
	hex := b.ID.Encoded()
	for _, ref := range []string{
		name, "nginx:v2", "docker.io/library/nginx:v2", b.ID.String(), hex, hex[:12], hex[:1], "sha256:" + hex[:5],
		r.reg.Host + "/lib/app@" + b.Manifest.Digest.String(), name + "@" + b.Manifest.Digest.String(), "docker.io%2Flibrary%2Fnginx:v2",
	} {
		var doc dockertypes.Image
		text := r.want(200, "GET", "/images/"+ref+"/json", nil, &doc)
		if doc.ID != b.ID.String() || !slices.Contains(doc.RepoTags, "nginx:v2") || doc.Config.Healthcheck.Retries != 4 || len(doc.RootFS.Layers) != 2 ||
			doc.RootFS.Layers[1] != b.DiffIDs[1].String() || doc.Os != "linux" || doc.Architecture != runtime.GOARCH || doc.GraphDriver.Name != "overlay" {
			t.Errorf("%s: %s", ref, text)
		}
		for _, absent := range []string{`"Hostname"`, `"Descriptor"`, `"Manifests"`, `"VirtualSize"`} {
			if strings.Contains(text, absent) {
				t.Errorf("%s: it has %s: %s", ref, absent, text)
			}
		}
	}
	for version, absent := range map[string]string{"1.51": "Hostname", "1.49": "ContainerConfig", "1.45": "ContainerConfig", "1.44": "VirtualSize"} {
		if text := r.want(200, "GET", "/v"+version+"/images/nginx:v2/json", nil, nil); strings.Contains(text, `"`+absent+`"`) || !strings.Contains(text, `"Entrypoint":null`) {
			t.Errorf("%s has %s, or no Entrypoint: %s", version, absent, text)
		}
	}
	old := r.want(200, "GET", "/v1.43/images/nginx:v2/json", nil, nil)
	for _, member := range []string{`"Hostname":""`, `"VirtualSize":`, `"80/tcp":{}`, `"Created":"0001-01-01T00:00:00Z"`, `"ContainerConfig":{`, `"Shell":["/bin/bash","-c"]`} {
		if !strings.Contains(old, member) {
			t.Errorf("before 1.44 it lacks %s: %s", member, old)
		}
	}
	if _, text := r.do("GET", "/v1.51/images/nginx:v2/json", nil, "User-Agent", "docker-compose/1.29.2 docker-py/5.0.3 Linux/6.1"); !strings.Contains(text, `"ContainerConfig":{`) {
		t.Errorf("for docker-compose 1 it lacks ContainerConfig: %s", text)
	}
	r.refused(404, "GET", "/images/absent/json", "No such image: absent:latest")
	r.refused(404, "GET", "/images/nginx/json", "No such image: nginx:latest")
	r.refused(404, "GET", "/images/"+strings.Repeat("0", 64)+"/json", "No such image: sha256:0000")
	r.refused(400, "GET", "/images/UPPER/json", "must be lowercase")
	r.refused(400, "GET", "/images/"+strings.Repeat("a", 300)+"/json", "255")
	r.refused(400, "GET", "/images/..%2F..%2Fetc%2Fpasswd/json", "invalid reference format")
	r.refused(400, "GET", "/images/a%00b/json", "invalid reference format")
	r.refused(404, "GET", "/images/nginx:v2/json?platform="+url.QueryEscape(`{"os":"linux","architecture":"s390x"}`), "does not match the specified platform (linux/s390x)")
	r.refused(400, "GET", "/images/nginx:v2/json?platform=linux", "invalid platform")
	r.want(200, "GET", "/images/nginx:v2/json?platform="+url.QueryEscape(`{"os":"linux","architecture":"`+runtime.GOARCH+`"}`), nil, nil)
}

// TestHistoryAndImport: an imported root has one entry, with its size.
func TestHistoryAndImport(t *testing.T) {
	r := newRig(t)
	root := imagetest.Tar([]imagetest.File{{Name: "a", Body: bytes.Repeat([]byte("x"), 5000)}})
	query := "/images/create?fromSrc=-&repo=made&tag=v1&changes=CMD+echo+hi&changes=ENV+A%3D1&message=why"
	list := messages(t, r.want(200, "POST", query, bytes.NewReader(root), nil))
	id := list[len(list)-1].Status
	if digest.Digest(id).Validate() != nil || len(list) != 1 {
		t.Fatalf("%+v", list)
	}
	if got := r.told(); len(got) != 1 || got[0] != "image import "+id+" map[name:"+id+"]" {
		t.Errorf("events %q", got)
	}
	var doc dockertypes.Image
	r.want(200, "GET", "/images/made:v1/json", nil, &doc)
	if doc.ID != id || doc.Comment != "why" || !slices.Equal(doc.Config.Cmd, []string{"/bin/sh", "-c", "echo hi"}) || doc.Created == "" {
		t.Errorf("%+v", doc)
	}
	var history []dockertypes.ImageHistory
	r.want(200, "GET", "/images/made:v1/history", nil, &history)
	if len(history) != 1 || history[0].ID != id || history[0].Size < 5000 || history[0].Comment != "why" || !slices.Equal(history[0].Tags, []string{"made:v1"}) || history[0].Created == 0 {
		t.Errorf("%+v", history)
	}
	if text := r.want(200, "GET", "/images/made:v1/json", nil, nil); !strings.Contains(text, `"Env":["A=1"]`) {
		t.Errorf("its variables are missing: %s", text)
	}
	r.s.HidesEnv = func(context.Context) bool { return true }
	if text := r.want(200, "GET", "/images/made:v1/json", nil, nil) + r.want(200, "GET", "/v1.40/images/made:v1/json", nil, nil); strings.Contains(text, "A=1") {
		t.Errorf("its variables are not hidden: %s", text)
	}
	r.s.HidesEnv = nil
	r.want(200, "POST", "/images/create?fromSrc=-", bytes.NewReader(root), nil)
	for query, words := range map[string]string{
		"repo=made&changes=RUN+x": "RUN", "repo=Made": "lowercase", "repo=sha256": "ambiguous tag", "repo=a@sha256:" + strings.Repeat("a", 64): "digest", "platform=windows": "not supported",
	} {
		r.refused(400, "POST", "/images/create?fromSrc=-&"+query, words)
	}
	for _, body := range []string{"no tar at all" + strings.Repeat(" ", 600), "\x1f\x8bxx", "\xfd7zXZ\x00"} {
		if status, text := r.do("POST", "/images/create?fromSrc=-&repo=bad", strings.NewReader(body)); status != 400 {
			t.Errorf("%.8q: %d %s", body, status, text)
		}
	}
	if got := r.tags(filters(`{"reference":["bad"]}`)); got != nil {
		t.Errorf("it made %q", got)
	}
}

// TestHistoryOfABuild: the newest entry comes first and has the image's ID and tags, and commands can be hidden.
func TestHistoryOfABuild(t *testing.T) {
	n := enginetest.New(t)
	at := time.Unix(1000, 0)
	n.Images.OfferAs("built", core.Image{ID: "sha256:" + digest.Digest(strings.Repeat("1", 64)), Digest: "sha256:" + digest.Digest(strings.Repeat("2", 64)), Config: ocispec.Image{
		History: []ocispec.History{{Created: &at, CreatedBy: "ADD rootfs"}, {CreatedBy: "ENV A=secret", EmptyLayer: true, Comment: "buildkit"}},
	}})
	hide := false
	s := &images.Server{Engine: n.As(core.OwnerDocker), Transfers: n.Images, Owner: core.OwnerDocker, HidesEnv: func(context.Context) bool { return hide }}
	r := &rig{Node: n, t: t, s: s, url: serve(t, s)}
	r.want(200, "POST", "/images/create?fromImage=built&tag=latest", nil, nil)
	var list []dockertypes.ImageHistory
	r.want(200, "GET", "/images/built/history", nil, &list)
	if len(list) != 2 || list[0].CreatedBy != "ENV A=secret" || list[0].Comment != "buildkit" || list[0].Size != 0 || !slices.Equal(list[0].Tags, []string{"built:latest"}) ||
		list[1].ID != "<missing>" || list[1].Created != 1000 || list[1].Tags != nil {
		t.Errorf("%+v", list)
	}
	hide = true
	if text := r.want(200, "GET", "/images/built/history", nil, nil); strings.Contains(text, "secret") {
		t.Errorf("commands are not hidden: %s", text)
	}
}

func TestTag(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	r.want(201, "POST", "/images/"+b.ID.Encoded()[:6]+"/tag?repo=a/b&tag=c", nil, nil)
	if got := r.told(); !slices.Equal(got, []string{fmt.Sprintf("image tag %s map[n:lib/app name:a/b:c]", b.ID)}) {
		t.Errorf("events %q", got)
	}
	if got := r.tags(""); !slices.Contains(got, "a/b:c") {
		t.Errorf("tags %q", got)
	}
	r.refused(404, "POST", "/images/absent/tag?repo=x", "No such image: absent:latest")
	for query, words := range map[string]string{
		"": "invalid reference format", "repo=sha256&tag=x": "refusing to create an ambiguous tag using digest algorithm as name", "repo=X": "lowercase", "repo=x&tag=a%2Fb": "invalid tag format",
		"repo=x&tag=sha256:" + strings.Repeat("a", 64): "cannot create a tag with a digest reference",
	} {
		r.refused(400, "POST", "/images/"+name+"/tag?"+query, words)
	}
}

func TestRemoveByName(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	other, _ := r.pulled("lib/other")
	r.want(201, "POST", "/images/"+name+"/tag?repo=nginx", nil, nil)
	r.told()
	r.uses(images.User{ID: strings.Repeat("c", 64), Image: b.ID, Running: true})
	// A container of the image does not keep one of several names.
	var list []dockertypes.ImageDeletion
	r.want(200, "DELETE", "/images/nginx", nil, &list)
	if !slices.Equal(list, []dockertypes.ImageDeletion{{Untagged: "nginx:latest"}}) {
		t.Errorf("%+v", list)
	}
	r.refused(409, "DELETE", "/images/"+name, fmt.Sprintf("conflict: unable to remove repository reference %q (must force) - container cccccccccccc is using its referenced image %s",
		name, b.ID.Encoded()[:12]))
	r.refused(409, "DELETE", "/images/"+b.ID.Encoded()[:12]+"?force=1", "(cannot be forced) - image is being used by running container cccccccccccc")
	r.uses(images.User{ID: strings.Repeat("d", 64), Image: b.ID})
	r.refused(409, "DELETE", "/images/"+b.ID.String(), "(must be forced) - image is being used by stopped container dddddddddddd")
	r.told()
	r.want(200, "DELETE", "/images/"+name+"?force=true", nil, &list)
	want := []dockertypes.ImageDeletion{{Untagged: name}, {Untagged: r.reg.Host + "/lib/app@" + b.Manifest.Digest.String()}, {Deleted: b.ID.String()}}
	if len(list) != 4 || !slices.Equal(list[:3], want) || list[3].Deleted == "" || list[3].Deleted == b.DiffIDs[0].String() { // the lower layer is the other image's, too
		t.Errorf("%+v, want %+v and the upper layer", list, want)
	}
	id := b.ID.String()
	if got := r.told(); !slices.Equal(got, []string{"image untag " + id + " map[n:lib/app name:" + id + "]", "image delete " + id + " map[n:lib/app name:" + id + "]"}) {
		t.Errorf("events %q", got)
	}
	r.refused(404, "DELETE", "/images/"+name, "No such image: "+name)
	if got := r.tags(""); !slices.Equal(got, []string{other}) {
		t.Errorf("left %q", got)
	}
}

// TestADamagedImageIsRemoved: the file with its config is gone.
func TestADamagedImageIsRemoved(t *testing.T) {
	r := newRig(t)
	for _, form := range []func(name, id string) string{
		func(name, _ string) string { return name }, func(_, id string) string { return id }, func(_, id string) string { return id[len("sha256:"):][:12] },
	} {
		name, b := r.pulled("lib/app")
		config, err := filepath.Glob(filepath.Join(r.root, "*", "blobs", "sha256", b.ID.Encoded()))
		if err != nil || len(config) != 1 {
			t.Fatalf("configs %q, %v", config, err)
		}
		if err := os.Remove(config[0]); err != nil {
			t.Fatal(err)
		}
		var list []dockertypes.ImageDeletion
		r.want(200, "DELETE", "/images/"+form(name, b.ID.String()), nil, &list)
		if len(list) < 3 || list[2].Deleted != b.ID.String() {
			t.Errorf("%+v", list)
		}
		if got := r.tags(""); got != nil {
			t.Errorf("left %q", got)
		}
	}
}

func TestRemoveByID(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	r.want(201, "POST", "/images/"+name+"/tag?repo=nginx", nil, nil)
	id := b.ID.String()
	r.refused(409, "DELETE", "/images/"+id, "conflict: unable to delete "+b.ID.Encoded()[:12]+" (must be forced) - image is referenced in multiple repositories")
	var list []dockertypes.ImageDeletion
	r.want(200, "DELETE", "/images/"+id+"?force=1&noprune=1", nil, &list)
	if len(list) != 6 || list[3].Deleted != id {
		t.Errorf("%+v", list)
	}
	if got := r.tags(""); got != nil {
		t.Errorf("left %q", got)
	}
}

// TestARunningContainerKeepsItsImage: by force the image loses its last name, and stays without one.
func TestARunningContainerKeepsItsImage(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	r.uses(images.User{ID: "c", Image: b.ID, Running: true})
	var list []dockertypes.ImageDeletion
	r.want(200, "DELETE", "/images/"+name+"?force=1", nil, &list)
	if len(list) != 2 || list[0].Untagged != name || list[1].Untagged == "" {
		t.Errorf("%+v", list)
	}
	var doc dockertypes.Image
	r.want(200, "GET", "/images/"+b.ID.String()+"/json", nil, &doc)
	if len(doc.RepoTags)+len(doc.RepoDigests) != 0 {
		t.Errorf("%+v", doc)
	}
	r.uses()
	r.want(200, "DELETE", "/images/"+b.ID.String(), nil, &list)
	if len(list) != 3 || list[0].Deleted != b.ID.String() {
		t.Errorf("%+v", list)
	}
}

// TestUsersAreTheContainers: without a function of its own the server asks the engine for the containers of its owner.
func TestUsersAreTheContainers(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	_, _, err := r.As(core.OwnerDocker).CreatePair(t.Context(), engine.Pair{
		Sandbox: core.SandboxConfig{Key: "x"},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{Key: "x", Root: core.Root{Image: b.ID}, Spec: enginetest.Args("run")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.refused(409, "DELETE", "/images/"+name, "(must force) - container ")
	var list []dockertypes.ImageSummary
	r.want(200, "GET", "/images/json", nil, &list)
	if len(list) != 1 || list[0].Containers != 1 {
		t.Errorf("%+v", list)
	}
}

func TestPrune(t *testing.T) {
	r := newRig(t)
	a, first := r.pulled("lib/app")
	r.reg.Push("lib/app", "v1", sample("newer").Build())
	r.want(200, "POST", "/images/create?fromImage="+url.QueryEscape(a), nil, nil) // the first one loses its tag
	r.pulled("lib/other")
	r.told()
	var list []dockertypes.ImageSummary
	r.want(200, "GET", "/images/json?"+filters(`{"dangling":["1"]}`), nil, &list)
	if len(list) != 1 || list[0].ID != first.ID.String() || list[0].RepoTags == nil {
		t.Fatalf("dangling %+v", list)
	}
	r.refused(400, "POST", "/images/prune?"+filters(`{"reference":["x"]}`), "invalid filter 'reference'")
	var out dockertypes.ImagesPruned
	r.want(200, "POST", "/images/prune?"+filters(`{"label":["n=nobody"]}`), nil, &out)
	if out.ImagesDeleted != nil {
		t.Errorf("with a label: %+v", out)
	}
	r.told()
	r.want(200, "POST", "/images/prune", nil, &out)
	if len(out.ImagesDeleted) != 3 || out.ImagesDeleted[1].Deleted != first.ID.String() || out.SpaceReclaimed == 0 {
		t.Errorf("%+v", out)
	}
	if got := r.told(); len(got) != 2 || !strings.HasPrefix(got[0], "image delete ") || got[1] != fmt.Sprintf("image prune  map[reclaimed:%d]", out.SpaceReclaimed) {
		t.Errorf("events %q", got)
	}
	r.want(200, "POST", "/images/prune?"+filters(`{"dangling":["false"]}`), nil, &out)
	if got := r.tags(""); got != nil || len(out.ImagesDeleted) < 6 {
		t.Errorf("all: left %q, %+v", got, out)
	}
}

func TestSaveAndLoad(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	repo := strings.TrimSuffix(name, ":v1")
	r.want(201, "POST", "/images/"+name+"/tag?repo="+repo+"&tag=v2", nil, nil)
	other, _ := r.pulled("lib/other")
	r.told()
	archive := r.want(200, "GET", "/images/get?names="+repo+"&names="+other, nil, nil)
	if got := r.told(); len(got) != 2 || !strings.HasPrefix(got[0], "image save sha256:") {
		t.Errorf("events %q", got)
	}
	files := map[string]string{}
	for tr := tar.NewReader(strings.NewReader(archive)); ; {
		h, err := tr.Next()
		if err != nil {
			break
		}
		data, _ := io.ReadAll(tr)
		files[h.Name] = string(data)
	}
	var manifest []struct{ RepoTags []string }
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil || len(manifest) != 2 {
		t.Fatalf("manifest.json %s, %v", files["manifest.json"], err)
	}
	all := slices.Concat(manifest[0].RepoTags, manifest[1].RepoTags)
	slices.Sort(all)
	if !slices.Equal(all, []string{name, repo + ":v2", other}) || files["oci-layout"] == "" || files["index.json"] == "" {
		t.Errorf("names %q of %v", all, files["index.json"])
	}
	to := newRig(t)
	list := messages(t, to.want(200, "POST", "/images/load?quiet=1", strings.NewReader(archive), nil))
	var lines []string
	for _, m := range list {
		lines = append(lines, m.Stream)
	}
	slices.Sort(lines)
	if want := []string{"Loaded image: " + name + "\n", "Loaded image: " + repo + ":v2\n", "Loaded image: " + other + "\n"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	if got := to.told(); len(got) != 2 || !strings.HasPrefix(got[0], "image load sha256:") {
		t.Errorf("events %q", got)
	}
	single := r.want(200, "GET", "/images/"+b.ID.Encoded()[:12]+"/get", nil, nil)
	for _, how := range []string{imagetest.Gzip, imagetest.Zstd} {
		if got := to.want(200, "POST", "/images/load", bytes.NewReader(imagetest.Compress([]byte(single), how)), nil); !strings.Contains(got, "Loaded image: ") {
			t.Errorf("%s: %s", how, got)
		}
	}
	var packed bytes.Buffer
	z, err := xz.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(z, single); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	whole := packed.Bytes()
	if got := to.want(200, "POST", "/images/load", bytes.NewReader(whole), nil); !strings.Contains(got, "Loaded image: ") {
		t.Errorf("xz: %s", got)
	}
	if got := to.want(200, "POST", "/images/load", bytes.NewReader(whole[:len(whole)/2]), nil); !strings.Contains(got, `"error":"`) {
		t.Errorf("half of xz: %s", got)
	}
	r.refused(404, "GET", "/images/absent/get", "No such image: absent")
	r.refused(400, "GET", "/images/get", "name at least one image")
	r.refused(404, "GET", "/images/get?names="+repo+"&names=absent:x", "No such image: absent:x")
}

// TestLoadOfRubbish answers in the stream, as dockerd does, and keeps nothing.
func TestLoadOfRubbish(t *testing.T) {
	r := newRig(t)
	var nameless bytes.Buffer
	if err := imagetest.WriteOCI(&nameless, map[string]imagetest.Built{"": sample("x").Build()}); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"", "rubbish", "BZh91AY&SY", nameless.String()[:nameless.Len()/2], string(imagetest.Tar([]imagetest.File{{Name: "etc/passwd", Body: []byte("x")}}))} {
		text := r.want(200, "POST", "/images/load", strings.NewReader(body), nil)
		if !strings.Contains(text, `"errorDetail":{"message":"`) || !strings.Contains(text, `"error":"`) {
			t.Errorf("%.10q: %s", body, text)
		}
	}
	if got := r.want(200, "GET", "/images/json", nil, nil); got != "[]\n" {
		t.Errorf("it kept %s", got)
	}
	r.refused(501, "POST", "/images/load?platform="+url.QueryEscape(`{"os":"linux","architecture":"s390x"}`), "linux/s390x")
	text := r.want(200, "POST", "/images/load", &nameless, nil)
	if !strings.Contains(text, `"stream":"Loaded image ID: sha256:`) {
		t.Errorf("without a name: %s", text)
	}
}

// TestLoadKeepsNoArchiveInMemory sends a large archive. The server keeps a small part of it in memory.
func TestLoadKeepsNoArchiveInMemory(t *testing.T) {
	r := newRig(t)
	const size = 256 << 20
	var peak uint64
	pr, pw := io.Pipe()
	go func() {
		tw := tar.NewWriter(pw)
		_ = tw.WriteHeader(&tar.Header{Name: "blobs/sha256/" + strings.Repeat("0", 64), Size: size, Mode: 0o600, Typeflag: tar.TypeReg})
		chunk := make([]byte, 1<<20)
		for i := range size / len(chunk) {
			if _, err := tw.Write(chunk); err != nil {
				break
			}
			if i%32 == 0 {
				runtime.GC() // HeapAlloc counts garbage, too
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapAlloc)
			}
		}
		_ = pw.Close()
	}()
	if text := r.want(200, "POST", "/images/load", pr, nil); !strings.Contains(text, `"error"`) {
		t.Errorf("%s", text)
	}
	if peak > size/4 {
		t.Errorf("%d bytes in memory of an archive of %d", peak, size)
	}
}

func TestPush(t *testing.T) {
	r := newRig(t)
	name, b := r.pulled("lib/app")
	to := imagetest.NewRegistry(t)
	target := to.Host + "/copy/app"
	for _, tag := range []string{"v1", "v2"} {
		r.want(201, "POST", "/images/"+name+"/tag?repo="+target+"&tag="+tag, nil, nil)
	}
	r.told()
	list := messages(t, r.want(200, "POST", "/images/"+target+"/push?tag=v1", nil, nil))
	last := map[string]string{}
	for _, m := range list {
		last[m.ID] = m.Status
	}
	if list[0].Status != "The push refers to repository ["+target+"]" || len(last) != 3 {
		t.Errorf("%+v", list)
	}
	for _, l := range b.Layers {
		if last[l.Digest.Encoded()[:12]] != "Pushed" {
			t.Errorf("layer %s: %q", l.Digest, last[l.Digest.Encoded()[:12]])
		}
	}
	end := list[len(list)-2:]
	aux, _ := json.Marshal(end[1].Aux)
	if want := fmt.Sprintf("v1: digest: %s size: %d", b.Manifest.Digest, b.Manifest.Size); end[0].Status != want ||
		string(aux) != fmt.Sprintf(`{"Digest":%q,"Size":%d,"Tag":"v1"}`, b.Manifest.Digest, b.Manifest.Size) {
		t.Errorf("%+v %s, want %s", end, aux, want)
	}
	if got := r.told(); !slices.Equal(got, []string{"image push " + target + ":v1 map[n:lib/app name:" + target + "]"}) {
		t.Errorf("events %q", got)
	}
	var doc dockertypes.Image
	r.want(200, "GET", "/images/"+target+":v1/json", nil, &doc)
	if !slices.Contains(doc.RepoDigests, target+"@"+b.Manifest.Digest.String()) {
		t.Errorf("digests after a push: %q", doc.RepoDigests)
	}
	text := r.want(200, "POST", "/images/"+target+"/push", nil, nil)
	if !strings.Contains(text, "v1: digest") || !strings.Contains(text, "v2: digest") || !strings.Contains(text, "Layer already exists") {
		t.Errorf("all tags: %s", text)
	}
	for path, words := range map[string]string{
		"absent/push": "An image does not exist locally with the tag: absent", target + "/push?tag=v9": "tag does not exist: " + target + ":v9",
	} {
		if text := r.want(200, "POST", "/images/"+path, nil, nil); !strings.Contains(text, `"error":"`+words) {
			t.Errorf("%s: %s", path, text)
		}
	}
	to.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusForbidden) })
	if text := r.want(200, "POST", "/images/"+target+"/push?tag=v1", nil, nil); !strings.Contains(text, `"errorDetail":{"message":"`) || !strings.Contains(text, "403") {
		t.Errorf("a registry that refuses: %s", text)
	}
	if got := r.told(); len(got) != 2 { // of the push of all tags
		t.Errorf("events %q", got)
	}
	r.refused(400, "POST", "/images/UPPER/push", "lowercase")
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/build?t=x", "/session", "/grpc", "/v1.24/build"} {
		r.refused(501, "POST", path, "docker buildx create --driver docker-container --use, and build with --load")
	}
	r.refused(501, "GET", "/images/search?term=x", "searches no registry")
	r.refused(501, "GET", "/images/x/attestations", "no attestations")
	if text := r.want(200, "POST", "/build/prune?all=1", nil, nil); text != `{"CachesDeleted":null,"SpaceReclaimed":0}`+"\n" {
		t.Errorf("%q", text)
	}
	r.refused(400, "POST", "/v1.30/build/prune", "requires minimum API version 1.31")
	r.refused(400, "POST", "/build/cancel", "build ID not provided")
	if text := r.want(200, "POST", "/build/cancel?id=x", nil, nil); text != "" {
		t.Errorf("%q", text)
	}
}

func TestDistribution(t *testing.T) {
	r := newRig(t)
	b := sample("a").Build()
	name := r.reg.Push("lib/app", "v1", b)
	var doc dockertypes.RemoteImage
	r.want(200, "GET", "/distribution/"+name+"/json", nil, &doc)
	if doc.Descriptor.Digest != b.Manifest.Digest.String() || doc.Descriptor.Size != b.Manifest.Size || doc.Descriptor.MediaType == "" || len(doc.Platforms) != 1 || doc.Platforms[0].Architecture != runtime.GOARCH {
		t.Errorf("%+v", doc)
	}
	r.refused(404, "GET", "/distribution/"+r.reg.Host+"/lib/app:absent/json", "not found")
	r.refused(400, "GET", "/distribution/UPPER/json", "lowercase")
	if got := r.want(200, "GET", "/images/json", nil, nil); got != "[]\n" {
		t.Errorf("it stored %s", got)
	}
}
