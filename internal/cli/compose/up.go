package compose

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/cli/progress"
)

// upFlags are the flags of up.
type upFlags struct {
	files                                         Files
	detach, wait, force, keep, orphans, noDeps    bool
	noStart, quietPull, renew, build, noLogPrefix bool
	abort                                         bool
	waitTimeout, timeout                          int
	scale                                         []string
	pull, exitFrom                                string
}

// NewUp returns the command up.
func NewUp(a *base.App, creds Credentials) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up [SERVICE...]",
		Short: "Create and start the services of a Compose file",
		Long: "Create and start the containers, networks and volumes that a Compose file declares, in the order of depends_on. A container that exists is\n" +
			"replaced if its settings have changed, and keeps its volumes. Without -d, up shows the output of all and stops them on Ctrl-C.\n" +
			"Settings that are not possible are refused, with their lines, before anything is changed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(args)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			p, err := composefile.Load(cmd.Context(), a.Stdin, o)
			if refused := (*composefile.RefusedError)(nil); errors.As(err, &refused) {
				for _, reason := range refused.Reasons {
					a.Warn("%s", base.Printable(reason))
				}
				return &base.ExitError{Status: 1, Err: errors.New("nothing was changed")}
			}
			if err != nil {
				return err
			}
			for _, n := range p.Notes {
				a.Warn("note: %s", base.Printable(n))
			}
			key, err := ownKey(a.Getenv)
			if err != nil {
				return err
			}
			keyed(p, key)
			return a.Call(func(c *base.Client) error {
				u := &upper{runner: &runner{a: a, c: c, name: p.Name}, p: p, f: f, creds: creds, only: args}
				if cmd.Flags().Changed("timeout") {
					u.grace = &f.timeout
				}
				return u.run(cmd.Context())
			})
		},
	}
	f.define(cmd)
	return cmd
}

func (f *upFlags) define(cmd *cobra.Command) {
	fl := cmd.Flags()
	f.files.Define(fl)
	fl.BoolVarP(&f.detach, "detach", "d", false, "do not show the output, and leave the services running")
	fl.BoolVar(&f.wait, "wait", false, "wait until all services run or, with a health check, are healthy; implies -d")
	fl.IntVar(&f.waitTimeout, "wait-timeout", 0, "seconds that --wait takes at most (default: no limit)")
	fl.StringArrayVar(&f.scale, "scale", nil, "number of containers of a service, SERVICE=N")
	fl.BoolVar(&f.force, "force-recreate", false, "replace containers even if nothing has changed")
	fl.BoolVar(&f.keep, "no-recreate", false, "do not replace containers, even if their settings have changed")
	fl.BoolVar(&f.orphans, "remove-orphans", false, "remove containers of services that the files no longer have")
	fl.BoolVar(&f.noDeps, "no-deps", false, "leave out the services that the named ones depend on")
	fl.BoolVar(&f.noStart, "no-start", false, "create the containers without starting them")
	fl.StringVar(&f.pull, "pull", "", "when to pull images: missing, always, never (default: the services' pull_policy)")
	fl.BoolVar(&f.quietPull, "quiet-pull", false, "do not show the progress of pulls")
	fl.BoolVarP(&f.renew, "renew-anon-volumes", "V", false, "give replaced containers new anonymous volumes")
	fl.IntVarP(&f.timeout, "timeout", "t", 0, "seconds from the stop signal to KILL (default: each container's own)")
	fl.BoolVar(&f.noLogPrefix, "no-log-prefix", false, "show the output without the names of the containers")
	fl.BoolVar(&f.abort, "abort-on-container-exit", false, "stop all containers when one has ended; not with -d")
	fl.StringVar(&f.exitFrom, "exit-code-from", "", "end with the exit status of this service; implies --abort-on-container-exit")
	fl.BoolVar(&f.build, "build", false, "refused: images are not built")
	fl.Bool("no-build", false, "no effect: images are not built")
	fl.Bool("no-color", false, "no effect: the output has no colors")
}

// options returns the options of the project, or the error of a flag.
func (f *upFlags) options(args []string) (composefile.Options, error) {
	o := f.files.Options()
	o.Services, o.NoDeps = args, f.noDeps
	f.detach = f.detach || f.wait
	f.abort = f.abort || f.exitFrom != ""
	switch {
	case f.build:
		return o, errors.New("--build: images are not built: build them elsewhere, then pull them, or load them with longshore import")
	case f.force && f.keep:
		return o, errors.New("--force-recreate and --no-recreate exclude each other")
	case f.abort && f.detach:
		return o, errors.New("--abort-on-container-exit cannot be combined with -d")
	case f.noStart && f.wait:
		return o, errors.New("--wait cannot be combined with --no-start")
	case f.pull != "" && !slices.Contains([]string{"missing", "always", "never"}, f.pull):
		return o, fmt.Errorf("--pull %q is none of missing, always, never", f.pull)
	}
	for _, s := range f.scale {
		name, text, _ := strings.Cut(s, "=")
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return o, fmt.Errorf("--scale %q is not SERVICE=NUMBER", s)
		}
		if o.Scale == nil {
			o.Scale = map[string]int{}
		}
		o.Scale[name] = n
	}
	return o, nil
}

// upper makes one project run.
type upper struct {
	*runner
	p     *composefile.Project
	f     upFlags
	creds Credentials
	only  []string // the services that the user named

	images    map[string]string // IDs by service
	recreated map[string]bool   // services with a new container
}

// run does everything that up does.
func (u *upper) run(ctx context.Context) error {
	u.recreated = map[string]bool{}
	if u.f.exitFrom != "" && !slices.ContainsFunc(u.p.Services, func(s composefile.Service) bool { return s.Name == u.f.exitFrom }) {
		return &base.UsageError{Err: fmt.Errorf("--exit-code-from %s: no such service is started", u.f.exitFrom)}
	}
	if err := u.external(ctx); err != nil {
		return err
	}
	if err := u.pull(ctx); err != nil {
		return err
	}
	if u.f.detach || u.f.noStart {
		if err := u.make(ctx, nil); err != nil {
			return err
		}
		if u.f.wait {
			return u.waitForAll(ctx)
		}
		return nil
	}
	return u.foreground(ctx)
}

// make creates everything and starts it. started is called for each container that runs, with its
// service, and may be nil.
func (u *upper) make(ctx context.Context, started func(*longshorev1.Container, composefile.Service)) error {
	if err := u.networks(ctx); err != nil {
		return err
	}
	if err := u.volumes(ctx); err != nil {
		return err
	}
	if err := u.orphans(ctx); err != nil {
		return err
	}
	order := u.graph()
	uncreated := map[string]error{}
	for _, name := range order.order() {
		if err := u.converge(ctx, u.service(name)); err != nil {
			uncreated[name] = err
		}
	}
	errs := order.walk(func(name string, failed map[string]error) error {
		if err := uncreated[name]; err != nil || u.f.noStart {
			return err
		}
		return u.start(ctx, u.service(name), failed, started)
	})
	var all []error
	for _, name := range slices.Sorted(maps.Keys(errs)) {
		if errs[name] != nil {
			all = append(all, u.named("service "+name, errs[name]))
		}
	}
	return u.state(ctx, all...)
}

// state reports after errors which services run and which do not. It returns nil without errors.
func (u *upper) state(ctx context.Context, errs ...error) error {
	if len(errs) == 0 {
		return nil
	}
	for _, err := range errs {
		u.warn("%s", u.a.Explain(err))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTime)
	defer cancel()
	var up, not []string
	list, err := u.containers(ctx)
	if err != nil {
		return err
	}
	for _, s := range u.p.Services {
		n := 0
		for _, c := range list {
			if serviceOf(c) == s.Name && running(c) {
				n++
			}
		}
		if n >= s.Scale {
			up = append(up, s.Name)
		} else {
			not = append(not, s.Name)
		}
	}
	return &base.ExitError{Status: 1, Err: fmt.Errorf("running: %s; not running: %s; longshore up continues", listed(up), listed(not))}
}

// stateTime bounds the calls after a failure.
const stateTime = 10 * time.Second

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (u *upper) service(name string) composefile.Service {
	return u.p.Services[slices.IndexFunc(u.p.Services, func(s composefile.Service) bool { return s.Name == name })]
}

// graph returns the order of the services.
func (u *upper) graph() graph {
	g := graph{}
	for _, s := range u.p.Services {
		g[s.Name] = nil
		for _, d := range s.DependsOn {
			g[s.Name] = append(g[s.Name], d.Service)
		}
	}
	return g
}

// pull gets the images of all services, before anything is created.
func (u *upper) pull(ctx context.Context) error {
	u.images = map[string]string{}
	for _, s := range u.p.Services {
		policy := s.Request.GetPull()
		if u.f.pull != "" {
			policy = u.f.pull
		}
		id, err := u.image(ctx, s, policy)
		if err != nil {
			return u.named(s.At+": service "+s.Name, err)
		}
		u.images[s.Name] = id
	}
	return nil
}

// image returns the ID of a service's image, and pulls it as the policy says.
func (u *upper) image(ctx context.Context, s composefile.Service, policy string) (string, error) {
	name, platform := s.Request.GetImage(), s.Request.GetPlatform()
	if policy == "never" {
		resp, err := u.c.Images.InspectImage(ctx, &longshorev1.InspectImageRequest{Name: name})
		if err != nil {
			return "", err
		}
		return recordID(resp.GetJson())
	}
	req := &longshorev1.PullImageRequest{Name: name, Platform: platform, Missing: policy != "always"}
	var err error
	if req.Credentials, err = u.creds(ctx, name); err != nil {
		return "", err
	}
	img, err := u.pullOne(ctx, req)
	if err == nil && s.PullAfter > 0 && time.Since(img.GetPulled().AsTime()) > s.PullAfter {
		req.Missing = false
		img, err = u.pullOne(ctx, req)
	}
	return img.GetId(), err
}

func (u *upper) pullOne(ctx context.Context, req *longshorev1.PullImageRequest) (img *longshorev1.Image, err error) {
	stream, err := u.c.Images.PullImage(ctx, req)
	if err != nil {
		return nil, err
	}
	show := progress.New(u.a.Stderr, u.f.quietPull)
	defer show.End()
	err = base.Receive(stream.Recv, func(m *longshorev1.PullImageResponse) error {
		if p := m.GetProgress(); p != nil && (!req.GetMissing() || p.GetStatus() != "exists") {
			show.Step(p)
		}
		if m.GetImage() != nil {
			img = m.GetImage()
		}
		return nil
	})
	return img, err
}

// external checks that external networks and volumes exist, before anything is created.
func (u *upper) external(ctx context.Context) error {
	nets, err := u.c.Networks.ListNetworks(ctx, &longshorev1.ListNetworksRequest{})
	if err != nil {
		return err
	}
	predefined := []string{"bridge", "default", "host", "none"}
	for _, n := range u.p.Networks {
		i := slices.IndexFunc(nets.GetNetworks(), func(x *longshorev1.Network) bool { return x.GetName() == n.Request.GetName() })
		switch {
		case n.External && i < 0 && !slices.Contains(predefined, n.Request.GetName()):
			return fmt.Errorf("%s: the external network %s does not exist: create it with longshore network create %[2]s", n.At, n.Request.GetName())
		case !n.External && i >= 0 && nets.GetNetworks()[i].GetLabels()[composefile.LabelProject] != u.name:
			return fmt.Errorf("%s: the network %s exists and belongs to another project: write external: true to use it, or another name", n.At, n.Request.GetName())
		}
	}
	vols, err := u.c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{Owner: owner})
	if err != nil {
		return err
	}
	for _, v := range u.p.Volumes {
		i := slices.IndexFunc(vols.GetVolumes(), func(x *longshorev1.Volume) bool { return x.GetName() == v.Request.GetName() })
		switch {
		case v.External && i < 0:
			return fmt.Errorf("%s: the external volume %s does not exist: create it with longshore volume create %[2]s", v.At, v.Request.GetName())
		case !v.External && i >= 0 && vols.GetVolumes()[i].GetLabels()[composefile.LabelProject] != u.name:
			u.warn("%s: the volume %s exists and was not made for this project; write external: true to use it without this line", v.At, v.Request.GetName())
		}
	}
	return nil
}

// networks creates those that do not exist yet.
func (u *upper) networks(ctx context.Context) error {
	resp, err := u.c.Networks.ListNetworks(ctx, &longshorev1.ListNetworksRequest{})
	if err != nil {
		return err
	}
	for _, n := range u.p.Networks {
		name := n.Request.GetName()
		if n.External {
			continue
		}
		if i := slices.IndexFunc(resp.GetNetworks(), func(x *longshorev1.Network) bool { return x.GetName() == name }); i >= 0 {
			if resp.GetNetworks()[i].GetLabels()[composefile.LabelHash] != n.Request.GetLabels()[composefile.LabelHash] {
				u.warn("%s: the network %s has other settings; they change after longshore down", n.At, name)
			}
			continue
		}
		u.step("Network", name, "Creating")
		if _, err := u.c.Networks.CreateNetwork(ctx, n.Request); err != nil {
			return u.named(n.At, err)
		}
		u.step("Network", name, "Created")
	}
	return nil
}

// volumes creates those that do not exist yet.
func (u *upper) volumes(ctx context.Context) error {
	resp, err := u.c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{Owner: owner})
	if err != nil {
		return err
	}
	for _, v := range u.p.Volumes {
		name := v.Request.GetName()
		if v.External {
			continue
		}
		if i := slices.IndexFunc(resp.GetVolumes(), func(x *longshorev1.Volume) bool { return x.GetName() == name }); i >= 0 {
			has := resp.GetVolumes()[i].GetLabels()
			if has[composefile.LabelProject] == u.name && has[composefile.LabelHash] != v.Request.GetLabels()[composefile.LabelHash] {
				u.warn("%s: the volume %s has other options; they change after longshore down -v, which removes its content", v.At, name)
			}
			continue
		}
		u.step("Volume", name, "Creating")
		if _, err := u.c.Volumes.CreateVolume(ctx, v.Request); err != nil {
			return u.named(v.At, err)
		}
		u.step("Volume", name, "Created")
	}
	return nil
}

// orphans removes or reports containers of services that the files no longer have.
func (u *upper) orphans(ctx context.Context) error {
	list, err := u.containers(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, c := range list {
		if slices.Contains(u.p.Declared, serviceOf(c)) || oneOff(c) {
			continue
		}
		if names = append(names, c.GetName()); u.f.orphans {
			if err := u.remove(ctx, c, false); err != nil {
				return err
			}
		}
	}
	if len(names) > 0 && !u.f.orphans {
		u.warn("containers of services that the files no longer have: %s; --remove-orphans removes them", strings.Join(names, ", "))
	}
	return nil
}

// foreground makes everything, and shows the output until all have ended, or until the user interrupts.
func (u *upper) foreground(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	out := newOutput(work, u)
	made := make(chan error, 1)
	go func() { made <- u.make(work, out.follow) }()
	select {
	case err := <-made:
		if err != nil {
			return err
		}
	case <-signals: // the agent undoes a create that is interrupted
		cancel()
		if err := <-made; err == nil {
			u.warn("all services had started")
		}
		return u.interrupted(ctx, signals)
	}
	ended := make(chan int, 1)
	go func() { ended <- out.wait() }()
	select {
	case status := <-ended:
		return exitStatus(status)
	case <-out.aborted:
		if err := u.stopAll(ctx, signals); err != nil {
			return err
		}
		return exitStatus(<-ended)
	case <-signals:
		return u.interrupted(ctx, signals)
	}
}

// interrupted stops all services after the user's interrupt.
func (u *upper) interrupted(ctx context.Context, signals <-chan os.Signal) error {
	u.warn("stopping; interrupt again to kill")
	return errors.Join(u.stopAll(ctx, signals), &base.ExitError{Status: statusInterrupted})
}

// statusInterrupted is the exit status of a command that the user interrupted, as in shells.
const statusInterrupted = 130

func exitStatus(n int) error {
	if n == 0 {
		return nil
	}
	return &base.ExitError{Status: n}
}

// own returns the containers of the services that this command started. The project may have others.
func (u *upper) own(ctx context.Context) ([]*longshorev1.Container, error) {
	list, err := u.containers(ctx)
	return slices.DeleteFunc(list, func(c *longshorev1.Container) bool {
		return oneOff(c) || !slices.ContainsFunc(u.p.Services, func(s composefile.Service) bool { return s.Name == serviceOf(c) })
	}), err
}

// stopAll stops the services of this command in the opposite order of their dependencies. A signal kills them.
func (u *upper) stopAll(ctx context.Context, signals <-chan os.Signal) error {
	done := make(chan error, 1)
	go func() {
		list, err := u.own(ctx)
		if err != nil {
			done <- err
			return
		}
		var errs []error
		for _, err := range graphOf(list, u.graph()).reversed().walk(func(name string, _ map[string]error) error {
			return together(list, name, func(c *longshorev1.Container) error { return u.stop(ctx, c) })
		}) {
			errs = append(errs, err)
		}
		done <- errors.Join(errs...)
	}()
	for {
		select {
		case err := <-done:
			return err
		case <-signals:
			list, err := u.own(ctx)
			if err != nil {
				return err
			}
			for _, c := range list {
				if running(c) {
					_, _ = u.c.Containers.Kill(ctx, &longshorev1.KillRequest{Name: c.GetId()}) // the stop reports its error
				}
			}
		}
	}
}

// request returns the request for one container of a service.
func (u *upper) request(s composefile.Service, number int) *longshorev1.CreateRequest {
	r, ok := proto.Clone(s.Request).(*longshorev1.CreateRequest)
	if !ok {
		r = &longshorev1.CreateRequest{}
	}
	r.Name, r.Pull = nameOf(u.name, s, number), "never"
	r.Labels[composefile.LabelNumber], r.Labels[composefile.LabelImage] = strconv.Itoa(number), u.images[s.Name]
	return r
}

func nameOf(projectName string, s composefile.Service, number int) string {
	if s.ContainerName != "" {
		return s.ContainerName
	}
	return composefile.ContainerName(projectName, s.Name, number)
}
