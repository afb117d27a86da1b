package control

import (
	"cmp"
	"context"
	"slices"

	"github.com/longshore/longshore/internal/solo"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
)

// containerServer serves the Containers service.
type containerServer struct {
	longshorev1.UnimplementedContainersServer
	srv *Server
}

var _ longshorev1.ContainersServer = (*containerServer)(nil)

// ListSandboxes returns every owner's sandboxes, the newest first.
func (s *containerServer) ListSandboxes(ctx context.Context, req *longshorev1.ListSandboxesRequest) (*longshorev1.ListSandboxesResponse, error) {
	sandboxes, err := s.srv.all.Sandboxes(ctx, core.Filter{Owner: core.Owner(req.GetOwner()), Labels: req.GetLabels()})
	if err != nil {
		return nil, err
	}
	containers, err := s.srv.all.Containers(ctx, core.Filter{Owner: core.Owner(req.GetOwner())})
	if err != nil {
		return nil, err
	}
	count := map[core.ID]int{}
	for _, c := range containers {
		count[c.Sandbox]++
	}
	slices.SortFunc(sandboxes, func(a, b core.Sandbox) int { return newest(a.Meta, b.Meta) })
	resp := &longshorev1.ListSandboxesResponse{}
	for _, sb := range sandboxes {
		resp.Sandboxes = append(resp.Sandboxes, view.Sandbox(sb, count[sb.ID]))
	}
	return resp, nil
}

// newest orders by creation time, the latest first.
func newest(a, b core.Meta) int {
	return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
}

// ListContainers returns every owner's containers, the newest first.
func (s *containerServer) ListContainers(ctx context.Context, req *longshorev1.ListContainersRequest) (*longshorev1.ListContainersResponse, error) {
	filter := core.Filter{Owner: core.Owner(req.GetOwner()), Labels: req.GetLabels()}
	if req.GetSandbox() != "" {
		sb, err := s.srv.sandbox(ctx, req.GetSandbox())
		if err != nil {
			return nil, err
		}
		filter.Sandbox = sb.ID
	}
	containers, err := s.srv.all.Containers(ctx, filter)
	if err != nil {
		return nil, err
	}
	if !req.GetAll() {
		containers = slices.DeleteFunc(containers, func(c core.Container) bool {
			return !c.State.Live() && !c.Restarting()
		})
	}
	shown, err := s.srv.show(ctx, containers)
	if err != nil {
		return nil, err
	}
	if req.GetSizes() {
		if err := s.srv.sizes(ctx, shown); err != nil {
			return nil, err
		}
	}
	return &longshorev1.ListContainersResponse{Containers: shown}, nil
}

// sizes adds the sizes of each container's layer and of its image.
func (s *Server) sizes(ctx context.Context, shown []*longshorev1.Container) error {
	images, err := s.all.Images.List(ctx)
	if err != nil {
		return err
	}
	of := map[string]uint64{}
	for _, img := range images {
		of[img.ID.String()] = uint64(max(cmp.Or(img.Unpacked, img.Size), 0))
	}
	for _, c := range shown {
		if n, ok := of[c.GetImageId()]; ok {
			c.SizeImage = &n
		}
		if st, err := s.all.Stats.Images.RootStats(ctx, core.ID(c.GetId())); err == nil && st.Bytes.OK {
			c.SizeRw = &st.Bytes.N
		}
	}
	return nil
}

// show converts containers to the API's form, the newest first.
func (s *Server) show(ctx context.Context, containers []core.Container) ([]*longshorev1.Container, error) {
	if len(containers) == 0 {
		return nil, nil
	}
	sandboxes, err := s.all.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	byID := map[core.ID]core.Sandbox{}
	for _, sb := range sandboxes {
		byID[sb.ID] = sb
	}
	names, err := s.imageNames(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(containers, func(a, b core.Container) int { return newest(a.Meta, b.Meta) })
	var out []*longshorev1.Container
	for _, c := range containers {
		image := cmp.Or(c.Config.Shown.Image, names[c.Image])
		if r := solo.RecordOf(c); r.Image != "" {
			image = r.Image
		}
		v := view.Container(c, byID[c.Sandbox], image)
		v.Health = solo.HealthStatus(c)
		out = append(out, v)
	}
	return out, nil
}

// imageNames maps the ID of each image to one of its names.
func (s *Server) imageNames(ctx context.Context) (map[digest.Digest]string, error) {
	images, err := s.all.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	names := map[digest.Digest]string{}
	for _, img := range images {
		if len(img.Names) > 0 && names[img.ID] == "" {
			names[img.ID] = img.Names[0]
		}
	}
	return names, nil
}

// whyRemoved answers Why for a container without a record, because it was removed or existed before
// a boot: the event log still has its end.
func (s *containerServer) whyRemoved(ctx context.Context, name string, notFound error) (*longshorev1.WhyResponse, error) {
	ev, err := s.srv.all.LastExit(ctx, name)
	if err != nil {
		return nil, notFound
	}
	c := core.Container{Meta: core.Meta{ID: ev.Container, Owner: ev.Owner, Key: ev.Key}, Sandbox: ev.Sandbox, State: "removed"}
	c.Main.Finished, c.Main.Autopsy = ev.At, ev.Autopsy
	return &longshorev1.WhyResponse{Container: view.Container(c, core.Sandbox{}, "")}, nil
}

// Why returns how a container ended, or that it has not ended.
func (s *containerServer) Why(ctx context.Context, req *longshorev1.WhyRequest) (*longshorev1.WhyResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if errdefs.IsNotFound(err) {
		return s.whyRemoved(ctx, req.GetName(), err)
	}
	if err != nil {
		return nil, err
	}
	shown, err := s.srv.show(ctx, []core.Container{c})
	if err != nil {
		return nil, err
	}
	resp := &longshorev1.WhyResponse{Container: shown[0], FailedTest: view.FailedTest(c)}
	for _, p := range c.Execs {
		if p.Autopsy != nil {
			resp.Execs = append(resp.Execs, view.Process(p))
		}
	}
	if s.srv.o.LostOutput != nil {
		resp.LostBytes = s.srv.o.LostOutput(ctx, core.Ref{Container: c.ID})
	}
	sb, err := s.srv.all.Sandbox(ctx, c.Sandbox)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	resp.Start = view.Start(&sb, &c)
	if len(sb.Config.Network.Egress) > 0 || c.Main.Autopsy != nil && len(c.Main.Autopsy.EgressRefused) > 0 {
		if resp.Refused, err = s.srv.lastRefused(&c); err != nil {
			return nil, err
		}
	}
	// The keeper no longer counts for an ended process: its autopsy has the number.
	resp.LostBytes = max(resp.GetLostBytes(), resp.GetContainer().GetAutopsy().GetLostOutput())
	return resp, nil
}
