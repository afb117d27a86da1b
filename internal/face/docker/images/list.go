package images

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// The versions from that on members of images changed.
const (
	noneSince      = "1.43" // an image without names has empty lists; before, <none> or null
	virtualUntil   = "1.44" // before, VirtualSize, and a time for images without one
	containerUntil = "1.45" // before, ContainerConfig
	configSince    = "1.50" // an image's config has only the members of images
	countedSince   = "1.51" // lists count containers
)

// list answers GET /images/json.
func (s *Server) list(w http.ResponseWriter, r *dockerhttp.Request) error {
	filters, err := r.Filters("before", "dangling", "label", "label!", "reference", "since", "until")
	if err != nil {
		return err
	}
	if old := r.Get("filter"); old != "" && r.API.Before("1.41") {
		filters["reference"] = map[string]bool{old: true}
	}
	keep, err := s.wanted(r.Context(), filters)
	if err != nil {
		return err
	}
	out, err := s.summaries(r.Context(), r.API, keep, details{counts: !r.API.Before(countedSince), shared: r.Bool("shared-size")})
	if err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusOK, out)
}

// Documents returns the list of all images with the sizes that they share and the numbers of their containers, for system/df.
func (s *Server) Documents(ctx context.Context, api dockerhttp.Version) (any, error) {
	return s.summaries(ctx, api, func(*core.Image) bool { return true }, details{counts: true, shared: true})
}

// details selects members of a list of images.
type details struct{ counts, shared bool }

// summaries returns the list of the images that keep selects.
func (s *Server) summaries(ctx context.Context, api dockerhttp.Version, keep func(*core.Image) bool, with details) ([]dockertypes.ImageSummary, error) {
	images, err := s.Engine.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[digest.Digest]int64{}
	if with.counts {
		users, err := s.users(ctx)
		if err != nil {
			return nil, err
		}
		for _, u := range users {
			counts[u.Image]++
		}
	}
	var shared map[digest.Digest]int
	if with.shared {
		shared = layerUses(images)
	}
	slices.SortFunc(images, func(a, b core.Image) int { return cmp.Or(created(b).Compare(created(a)), cmp.Compare(a.ID, b.ID)) })
	out := []dockertypes.ImageSummary{}
	for _, img := range images {
		if !keep(&img) {
			continue
		}
		sum := dockertypes.ImageSummary{
			Containers: -1, Created: unix(img.Config.Created), ID: img.ID.String(), Labels: img.Config.Config.Labels, RepoDigests: familiars(img.Digests),
			RepoTags: familiars(img.Names), SharedSize: -1, Size: size(img),
		}
		if with.counts {
			sum.Containers = counts[img.ID]
		}
		if api.Before(virtualUntil) {
			sum.VirtualSize = sum.Size
		}
		if shared != nil {
			sum.SharedSize = sharedSize(img, shared)
		}
		switch {
		case !api.Before(noneSince):
		case len(img.Names)+len(img.Digests) == 0:
			sum.RepoTags, sum.RepoDigests = []string{"<none>:<none>"}, []string{"<none>@<none>"}
		case len(img.Digests) == 0:
			sum.RepoDigests = nil
		}
		out = append(out, sum)
	}
	return out, nil
}

// wanted returns a function that says whether an image matches the filters of a list, and removes the names that do not.
func (s *Server) wanted(ctx context.Context, f dockerhttp.Filters) (func(*core.Image) bool, error) {
	dangling, danglingSet, err := f.Bool("dangling")
	if err != nil {
		return nil, err
	}
	var after, before time.Time
	for _, v := range f.Values("until") {
		at, err := moment(v)
		if err != nil {
			return nil, err
		}
		before = earliest(before, at)
	}
	for _, v := range f.Values("before") {
		img, err := s.find(ctx, v)
		if err != nil {
			return nil, err
		}
		before = earliest(before, created(img.Image))
	}
	for _, v := range f.Values("since") {
		img, err := s.find(ctx, v)
		if err != nil {
			return nil, err
		}
		if at := created(img.Image); at.After(after) {
			after = at
		}
	}
	for _, v := range f.Values("reference") {
		if _, err := reference.FamiliarMatch(v, reference.TagNameOnly(anyName)); err != nil {
			return nil, invalid.Plainf("invalid filter 'reference=%.200s': %w", v, err)
		}
	}
	return func(img *core.Image) bool {
		at := created(*img)
		switch {
		case !before.IsZero() && !at.Before(before), !after.IsZero() && !at.After(after), !f.Labels(img.Config.Config.Labels):
			return false
		}
		if f.Has("reference") {
			img.Names = slices.DeleteFunc(slices.Clone(img.Names), func(n string) bool { return !matches(f, n) })
			img.Digests = slices.DeleteFunc(slices.Clone(img.Digests), func(n string) bool { return !matches(f, n) })
			if len(img.Names)+len(img.Digests) == 0 {
				return false
			}
		}
		if danglingSet && dangling {
			return len(img.Names) == 0
		}
		return !danglingSet || len(img.Names)+len(img.Digests) > 0
	}, nil
}

// anyName is a name to try patterns on.
var anyName, _ = reference.ParseNormalizedNamed("a") //nolint:gochecknoglobals // a constant

// matches reports whether a name matches one of the patterns of the filter reference.
func matches(f dockerhttp.Filters, name string) bool {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return false
	}
	return f.Any("reference", func(pattern string) bool {
		ok, err := reference.FamiliarMatch(pattern, named)
		if err == nil && !ok && strings.HasPrefix(pattern, "docker.io/") {
			if ok, err = path.Match(pattern, named.String()); err == nil && !ok {
				ok, err = path.Match(pattern, named.Name())
			}
		}
		return err == nil && ok
	})
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// moment reads the time of a filter: a duration before now, or a time.
func moment(text string) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return time.Now().Add(-d), nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, nil
		}
	}
	return dockerhttp.Moment("until", text)
}

// created returns when an image was made; the zero time if it does not say.
func created(img core.Image) time.Time {
	if img.Config.Created == nil {
		return time.Time{}
	}
	return *img.Config.Created
}

// unix returns a time in seconds; 0 for none.
func unix(at *time.Time) int64 {
	if at == nil {
		return 0
	}
	return at.Unix()
}

// size returns the bytes of an image's files.
func size(img core.Image) int64 {
	if img.Unpacked > 0 {
		return img.Unpacked
	}
	return img.Size
}

// chains returns the identities of an image's layers, the lowest first: each stands for the layers below, too.
func chains(img core.Image) []digest.Digest {
	return identity.ChainIDs(slices.Clone(img.Config.RootFS.DiffIDs))
}

// layerUses counts the images that have each layer.
func layerUses(images []core.Image) map[digest.Digest]int {
	uses := map[digest.Digest]int{}
	for _, img := range images {
		for _, c := range chains(img) {
			uses[c]++
		}
	}
	return uses
}

func sharedSize(img core.Image, uses map[digest.Digest]int) (bytes int64) {
	for i, c := range chains(img) {
		if uses[c] > 1 && i < len(img.Layers) {
			bytes += img.Layers[i]
		}
	}
	return bytes
}

// inspect answers GET /images/NAME/json.
func (s *Server) inspect(w http.ResponseWriter, r *dockerhttp.Request) error {
	img, err := s.findFor(r, r.Vars["name"])
	if err != nil {
		return err
	}
	doc := s.document(img.Image)
	if r.API.Before(virtualUntil) {
		doc.VirtualSize = doc.Size
		if doc.Created == "" {
			doc.Created = time.Time{}.Format(time.RFC3339Nano)
		}
	}
	// docker-compose 1 speaks the newest API version, but needs the member to recreate a container.
	if r.API.Before(containerUntil) || strings.HasPrefix(r.UserAgent(), "docker-compose/1.") {
		doc.ContainerConfig = &dockertypes.Config{}
	}
	c := config(img.Image)
	if s.hidesEnv(r.Context()) {
		c.Env = []string{}
	}
	if r.API.Before(configSince) {
		return dockerhttp.Reply(w, http.StatusOK, oldImage{doc, oldConfig(c)})
	}
	return dockerhttp.Reply(w, http.StatusOK, shownImage{doc, c})
}

// findFor is find for a request that may have a platform.
func (s *Server) findFor(r *dockerhttp.Request, name string) (found, error) {
	img, err := s.find(r.Context(), name)
	if err != nil {
		return found{}, err
	}
	return img, checkPlatform(r, name, img.Image)
}

// checkPlatform returns NotFound if a request has a platform in JSON and the image has another one.
func checkPlatform(r *dockerhttp.Request, name string, img core.Image) error {
	want, err := platformOf(r)
	if err != nil || want == nil {
		return err
	}
	if !platforms.OnlyStrict(*want).Match(img.Config.Platform) {
		return errdefs.ErrNotFound.WithMessage(otherPlatform(name, img, *want))
	}
	return nil
}

// otherPlatform says that an image is not of the platform that a request wants.
func otherPlatform(name string, img core.Image, want ocispec.Platform) string {
	return fmt.Sprintf("image with reference %s was found but its platform (%s) does not match the specified platform (%s)",
		name, platforms.FormatAll(img.Config.Platform), platforms.FormatAll(want))
}

// platformOf reads the platform of a request in JSON; nil for none.
func platformOf(r *dockerhttp.Request) (*ocispec.Platform, error) {
	text := r.Get("platform")
	if text == "" {
		return nil, nil
	}
	var p ocispec.Platform
	if err := json.Unmarshal([]byte(text), &p); err != nil || p.OS == "" || p.Architecture == "" {
		return nil, invalid.Plainf("invalid platform %.200q: it must be JSON with os and architecture", text)
	}
	return &p, nil
}

func (s *Server) document(img core.Image) dockertypes.Image {
	c := img.Config
	doc := dockertypes.Image{
		ID: img.ID.String(), RepoTags: familiars(img.Names), RepoDigests: familiars(img.Digests), Author: c.Author, Architecture: c.Architecture,
		Variant: c.Variant, Os: c.OS, OsVersion: c.OSVersion, Size: size(img), GraphDriver: dockertypes.GraphDriver{Name: s.Driver, Data: map[string]string{}},
		RootFS: dockertypes.RootFS{Type: "layers"}, Metadata: dockertypes.ImageMetadata{LastTagTime: img.Pulled},
	}
	if n := len(c.History); n > 0 {
		doc.Comment = c.History[n-1].Comment
	}
	if c.Created != nil {
		doc.Created = c.Created.Format(time.RFC3339Nano)
	}
	for _, d := range c.RootFS.DiffIDs {
		doc.RootFS.Layers = append(doc.RootFS.Layers, d.String())
	}
	return doc
}

// imageConfig is the config in the document of an image. Unlike that of docker inspect, the API has most of its members in any case.
type imageConfig struct {
	User         string
	ExposedPorts map[dockertypes.Port]struct{} `json:",omitempty"`
	Env          []string
	Cmd          []string
	Healthcheck  *dockertypes.HealthConfig `json:",omitempty"`
	ArgsEscaped  bool                      `json:",omitempty"`
	Volumes      map[string]struct{}
	WorkingDir   string
	Entrypoint   []string
	OnBuild      []string
	Labels       map[string]string
	StopSignal   string   `json:",omitempty"`
	Shell        []string `json:",omitempty"`
}

// shownImage is the document of an image.
type shownImage struct {
	dockertypes.Image
	Config imageConfig
}

func config(img core.Image) imageConfig {
	c := img.Config.Config
	out := imageConfig{
		User: c.User, Env: c.Env, Cmd: c.Cmd, Volumes: c.Volumes, WorkingDir: c.WorkingDir, Entrypoint: c.Entrypoint, OnBuild: img.OnBuild,
		Labels: c.Labels, StopSignal: c.StopSignal, Shell: img.Shell, ArgsEscaped: c.ArgsEscaped, //nolint:staticcheck // deprecated, and shown
	}
	for p := range c.ExposedPorts {
		if out.ExposedPorts == nil {
			out.ExposedPorts = map[dockertypes.Port]struct{}{}
		}
		out.ExposedPorts[dockertypes.Port(p)] = struct{}{}
	}
	if h := img.Health; h != nil {
		out.Healthcheck = &dockertypes.HealthConfig{
			Test: h.Test, Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, StartInterval: h.StartInterval, Retries: h.Retries,
		}
	}
	return out
}

// oldImage is the document before 1.50: its config has all members of a container's.
type oldImage struct {
	dockertypes.Image
	Config dockertypes.Config
}

func oldConfig(c imageConfig) dockertypes.Config {
	return dockertypes.Config{
		User: c.User, ExposedPorts: c.ExposedPorts, Env: c.Env, Cmd: c.Cmd, Healthcheck: c.Healthcheck, ArgsEscaped: c.ArgsEscaped, Volumes: c.Volumes,
		WorkingDir: c.WorkingDir, Entrypoint: c.Entrypoint, OnBuild: c.OnBuild, Labels: c.Labels, StopSignal: c.StopSignal, Shell: c.Shell,
	}
}

// history answers GET /images/NAME/history, the newest entry first.
func (s *Server) history(w http.ResponseWriter, r *dockerhttp.Request) error {
	img, err := s.findFor(r, r.Vars["name"])
	if err != nil {
		return err
	}
	out := []dockertypes.ImageHistory{}
	layer := 0
	for _, h := range img.Config.History {
		entry := dockertypes.ImageHistory{Comment: h.Comment, Created: unix(h.Created), CreatedBy: h.CreatedBy, ID: "<missing>"}
		if s.hidesEnv(r.Context()) {
			entry.CreatedBy = "" // it has the values of build arguments and variables
		}
		if !h.EmptyLayer {
			if layer < len(img.Layers) {
				entry.Size = img.Layers[layer]
			}
			layer++
		}
		out = append(out, entry)
	}
	slices.Reverse(out)
	if len(out) > 0 {
		out[0].ID, out[0].Tags = img.ID.String(), familiars(img.Names)
		if len(img.Names) == 0 {
			out[0].Tags = nil
		}
	}
	return dockerhttp.Reply(w, http.StatusOK, out)
}
