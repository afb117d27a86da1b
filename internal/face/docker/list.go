package docker

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/docker/view"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
)

// object returns a container with everything that its documents show.
func (f *Face) object(ctx context.Context, c core.Container) (*view.Object, error) {
	if c.Owner != core.OwnerDocker {
		names, err := others{f}.imageNames(ctx)
		if err != nil {
			return nil, err
		}
		return others{f}.object(ctx, c, names)
	}
	r, rec, err := recorded(c)
	if err != nil {
		return nil, err
	}
	sb, err := f.own.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return nil, err
	}
	o := &view.Object{Container: c, Sandbox: sb, Asked: r, Record: rec, NetworkID: f.networkID, VolumePath: f.volumePath, Unified: f.o.Unified != nil && f.o.Unified()}
	for id, path := range links(&c, &sb) {
		if to, err := f.own.Container(ctx, id); err == nil { // otherwise it was removed
			o.Links = append(o.Links, "/"+string(to.Key)+":"+path)
		}
	}
	return o, nil
}

// links returns the targets of a container's links and the paths that dockerd gives them: /CONTAINER/ALIAS. It shows those on the
// default network only.
func links(c *core.Container, sb *core.Sandbox) iter.Seq2[core.ID, string] {
	return func(yield func(core.ID, string) bool) {
		for _, l := range sb.Config.Network.Links {
			if len(l.Names) > 0 && shownNetwork(sb.Config.Network.Name) == bridgeNetwork && !yield(l.Container, "/"+string(c.Key)+"/"+l.Names[0]) {
				return
			}
		}
	}
}

func (f *Face) inspect(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	c, err := f.findAny(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	o, err := f.object(ctx, c)
	if err != nil {
		return err
	}
	doc := o.Inspect()
	if r.API.Before("1.45") {
		for name, e := range doc.NetworkSettings.Networks {
			if name != bridgeNetwork && name != hostNetwork && name != noneNetwork {
				e.Aliases = append(slices.Clone(e.Aliases), c.ID.Short())
				if h := doc.Config.Hostname; h != c.ID.Short() {
					e.Aliases = append(e.Aliases, h)
				}
			}
		}
	}
	if hidesEnv(ctx) {
		config := *doc.Config
		config.Env = []string{}
		doc.Config = &config
	}
	if r.Bool("size") {
		rw, all, err := f.sizes(ctx, c)
		if err != nil {
			return err
		}
		doc.SizeRw, doc.SizeRootFs = &rw, &all
	}
	return dockerhttp.Reply(w, http.StatusOK, doc)
}

// containerFilters are the filters of a list.
func containerFilters() []string {
	return []string{"ancestor", "before", "expose", "exited", "health", "id", "isolation", "label", "label!", "is-task", "name", "network", "publish", "since", "status", "volume"}
}

func (f *Face) list(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := r.Context()
	filters, err := r.Filters(containerFilters()...)
	if err != nil {
		return err
	}
	limit, err := r.Int("limit", -1)
	if err != nil {
		return invalid.Errorf("%v", err)
	}
	s, err := f.selection(ctx, filters)
	if err != nil {
		return err
	}
	s.all = r.Bool("all") || limit > 0 || filters.Has("status") || filters.Has("before") || filters.Has("since")
	s.limit, s.sizes = limit, r.Bool("size")
	out, err := f.selected(ctx, s, r.API)
	if err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusOK, out)
}

// summaries returns the entries of all containers.
func (f *Face) summaries(ctx context.Context, api dockerhttp.Version, sizes bool) ([]view.Summary, error) {
	return f.selected(ctx, selection{all: true, sizes: sizes}, api)
}

// selected returns the entries of the selected containers, the newest first.
func (f *Face) selected(ctx context.Context, s selection, api dockerhttp.Version) ([]view.Summary, error) {
	list, err := f.objects(ctx)
	if err != nil {
		return nil, err
	}
	out, now := []view.Summary{}, time.Now()
	for _, o := range list {
		status := view.Status(&o.Container)
		if !s.all && status != view.Running && status != view.Paused && status != view.Restarting || !s.has(o) {
			continue
		}
		sum := o.Summary(now, api)
		if s.sizes {
			if sum.SizeRw, sum.SizeRootFs, err = f.sizes(ctx, o.Container); err != nil {
				return nil, err
			}
		}
		if out = append(out, sum); s.limit > 0 && len(out) == s.limit {
			break
		}
	}
	return out, nil
}

// objects returns all containers that clients see, the newest first.
func (f *Face) objects(ctx context.Context) ([]*view.Object, error) {
	containers, err := f.own.Containers(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	sandboxes, err := f.own.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	byID := map[core.ID]core.Sandbox{}
	for _, sb := range sandboxes {
		byID[sb.ID] = sb
	}
	list, err := others{f}.list(ctx)
	if err != nil {
		return nil, err
	}
	networkID, volumePath := once(f.networkID), once(f.volumePath)
	read, aliases := f.requests.reader(), map[core.ID][]string{}
	for _, c := range containers {
		req, rec, err := read(c)
		sb, ok := byID[c.Sandbox]
		if err != nil || !ok || c.State == core.ContainerCreating {
			continue // it is being created or removed
		}
		list = append(list, &view.Object{Container: c, Sandbox: sb, Asked: req, Record: rec, NetworkID: networkID, VolumePath: volumePath})
		for id, path := range links(&c, &sb) {
			aliases[id] = append(aliases[id], path)
		}
	}
	for _, o := range list {
		o.Aliases = aliases[o.Container.ID]
	}
	slices.SortFunc(list, func(a, b *view.Object) int { return b.Container.Created.Compare(a.Container.Created) })
	return list, nil
}

// once returns a function that calls fn once for each name.
func once(fn func(string) string) func(string) string {
	known := map[string]string{}
	return func(name string) string {
		v, ok := known[name]
		if !ok {
			v = fn(name)
			known[name] = v
		}
		return v
	}
}

// selection selects containers by filters.
type selection struct {
	f             dockerhttp.Filters
	before, since time.Time
	task          bool
	all, sizes    bool
	limit         int             // 0 and less: none
	images        map[string]bool // ids and names that are selected by ancestor
	networkID     func(string) string
}

// The statuses of a health check in filters.
var healthStatuses = []string{"starting", "healthy", "unhealthy", "none"} //nolint:gochecknoglobals // a constant list

func (f *Face) selection(ctx context.Context, filters dockerhttp.Filters) (selection, error) {
	s := selection{f: filters, images: map[string]bool{}, networkID: f.networkID}
	for _, v := range filters.Values("status") {
		if !slices.Contains([]string{view.Created, view.Running, view.Paused, view.Restarting, view.Removing, view.Exited, "dead"}, v) {
			return s, invalid.Errorf("invalid filter 'status=%s': invalid value for state (%s): must be one of created, running, paused, restarting, removing, exited, dead", v, v)
		}
	}
	for _, v := range filters.Values("health") {
		if !slices.Contains(healthStatuses, v) {
			return s, invalid.Errorf("invalid filter 'health=%s': invalid value for health (%s): must be one of none, starting, healthy, unhealthy", v, v)
		}
	}
	for _, v := range filters.Values("exited") {
		if _, err := strconv.Atoi(v); err != nil {
			return s, invalid.Errorf("invalid filter 'exited=%s': %v", v, err)
		}
	}
	for _, key := range []string{"publish", "expose"} {
		for _, v := range filters.Values(key) {
			if _, _, err := portSpan(v); err != nil {
				return s, err
			}
		}
	}
	var err error
	if s.task, _, err = filters.Bool("is-task"); err != nil {
		return s, err
	}
	for key, to := range map[string]*time.Time{"before": &s.before, "since": &s.since} {
		for _, v := range filters.Values(key) {
			c, err := f.findAny(ctx, v)
			if err != nil {
				return s, err
			}
			*to = c.Created
		}
	}
	for _, v := range filters.Values("ancestor") {
		img, err := f.own.Images.Get(ctx, v)
		if err == nil {
			s.images[string(img.ID)] = true
		}
		s.images[v] = true
	}
	return s, nil
}

// portSpan reads PORT[-PORT][/PROTOCOL] of a filter.
func portSpan(text string) (first, last int, err error) {
	span, _, _ := strings.Cut(text, "/")
	from, to, isRange := strings.Cut(span, "-")
	if !isRange {
		to = from
	}
	a, aerr := strconv.ParseUint(from, 10, 16)
	b, berr := strconv.ParseUint(to, 10, 16)
	if aerr != nil || berr != nil || b < a {
		return 0, 0, invalid.Errorf("invalid filter: %q is no port", text)
	}
	return int(a), int(b), nil
}

func (s *selection) has(o *view.Object) bool {
	c := &o.Container
	if !s.before.IsZero() && !c.Created.Before(s.before) || !s.since.IsZero() && !c.Created.After(s.since) || s.task {
		return false
	}
	if len(s.images) > 0 && !s.images[string(c.Image)] && !s.images[o.Asked.Image] {
		return false
	}
	health := o.Record.HealthStatus(c)
	if health == "" {
		health = "none"
	}
	return s.f.Exact("status", view.Status(c)) && s.f.Labels(c.Labels) && s.f.Exact("health", health) && s.f.Exact("isolation", "default") &&
		s.f.Any("id", func(v string) bool { return strings.HasPrefix(string(c.ID), v) }) && s.f.Match("name", "/"+string(c.Key), string(c.Key)) &&
		s.exited(c) && s.network(o) && s.volume(o) && s.ports(o)
}

func (s *selection) exited(c *core.Container) bool {
	return !s.f.Has("exited") || view.Status(c) == view.Exited && s.f.Exact("exited", strconv.Itoa(view.ExitCode(c)))
}

func (s *selection) network(o *view.Object) bool {
	return s.f.Any("network", func(v string) bool {
		for name := range o.Endpoints(false) {
			if v == name || v == s.networkID(name) {
				return true
			}
		}
		return false
	})
}

func (s *selection) volume(o *view.Object) bool {
	return s.f.Any("volume", func(v string) bool {
		return slices.ContainsFunc(o.Summary(time.Time{}, dockerhttp.Version{}).Mounts, func(m dockertypes.MountPoint) bool { return m.Name == v || m.Destination == v })
	})
}

func (s *selection) ports(o *view.Object) bool {
	in := func(v string, p dockertypes.Port) bool {
		first, last, err := portSpan(v)
		number, proto, _ := strings.Cut(string(p), "/")
		n, nerr := strconv.Atoi(number)
		_, want, named := strings.Cut(v, "/")
		return err == nil && nerr == nil && n >= first && n <= last && (!named || want == proto)
	}
	exposed := func(v string) bool {
		for p := range o.Asked.ExposedPorts {
			if in(v, p) {
				return true
			}
		}
		return false
	}
	published := func(v string) bool {
		return slices.ContainsFunc(o.Summary(time.Time{}, dockerhttp.Version{}).Ports, func(p view.PublishedPort) bool {
			return p.PublicPort != 0 && in(v, dockertypes.Port(fmt.Sprintf("%d/%s", p.PublicPort, p.Type)))
		})
	}
	return s.f.Any("expose", exposed) && s.f.Any("publish", published)
}

// pruned is the answer to a removal of all ended containers.
type pruned struct {
	ContainersDeleted []string
	SpaceReclaimed    int64
}

func (f *Face) prune(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context())
	filters, err := r.Filters("label", "label!", "until")
	if err != nil {
		return err
	}
	until, err := untilOf(filters)
	if err != nil {
		return err
	}
	list, err := f.own.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	out := pruned{}
	for _, c := range list {
		status := view.Status(&c)
		if status != view.Exited && status != view.Created || !filters.Labels(c.Labels) || !until.IsZero() && !c.Created.Before(until) || c.State == core.ContainerCreating {
			continue
		}
		rw, _, err := f.sizes(ctx, c)
		if err != nil {
			rw = 0 // it is being removed
		}
		if err := f.solo.Remove(ctx, c, solo.Removal{RemoveOptions: engine.RemoveOptions{Request: stopRequest("container prune")}}); err != nil {
			continue // it was started, or another call removes it
		}
		out.ContainersDeleted, out.SpaceReclaimed = append(out.ContainersDeleted, string(c.ID)), out.SpaceReclaimed+rw
	}
	f.events.Publish("container", "prune", "", map[string]string{"reclaimed": strconv.FormatInt(out.SpaceReclaimed, 10)})
	return dockerhttp.Reply(w, http.StatusOK, out)
}

// untilOf reads the filter until: a time, or how long ago it was.
func untilOf(f dockerhttp.Filters) (time.Time, error) {
	values := f.Values("until")
	switch len(values) {
	case 0:
		return time.Time{}, nil
	case 1:
	default:
		return time.Time{}, invalid.Errorf("more than one until filter specified")
	}
	if d, err := time.ParseDuration(values[0]); err == nil {
		return time.Now().Add(-d), nil
	}
	return dockerhttp.Moment("until", values[0])
}
