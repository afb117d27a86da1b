// Package compose has the commands up and down, which make and remove the objects of Compose files. All state is in the
// labels of the objects, as docker compose writes them. Package composefile reads the files.
//
// Start at up.go.
package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/composefile"
)

// Credentials returns those for an image's registry, nil without any.
type Credentials func(ctx context.Context, image string) (*longshorev1.Credentials, error)

// owner is the owner of the objects that the command line creates.
const owner = "cli"

// Files are the flags that name a project.
type Files struct{ options composefile.Options }

// Define defines the flags.
func (f *Files) Define(fl *pflag.FlagSet) {
	fl.StringArrayVarP(&f.options.Files, "file", "f", nil, "Compose file; later ones are merged over earlier ones (default: $COMPOSE_FILE, or compose.yaml here or in a parent directory)")
	fl.StringVarP(&f.options.Name, "project-name", "p", "", "name of the project (default: $COMPOSE_PROJECT_NAME, the file's name:, or its directory)")
	fl.StringVar(&f.options.Dir, "project-directory", "", "directory of relative paths and of .env (default: that of the first file)")
	fl.StringArrayVar(&f.options.EnvFiles, "env-file", nil, "file with values for variables in the files, in place of .env")
	fl.StringArrayVar(&f.options.Profiles, "profile", nil, "profile to enable (default: $COMPOSE_PROFILES)")
}

// Options returns the options of package composefile.
func (f *Files) Options() composefile.Options {
	return f.options
}

// ProjectName returns the name of the project of a file; "" finds the file.
func ProjectName(ctx context.Context, a *base.App, file, name string) (string, error) {
	o := composefile.Options{Name: name}
	if file != "" {
		o.Files = []string{file}
	}
	out, err := composefile.Look(ctx, a.Stdin, o)
	return out.Name, err
}

// runner works on the objects of one project.
type runner struct {
	a       *base.App
	c       *base.Client
	name    string     // of the project
	grace   *int       // seconds between the stop signal and KILL; nil: each container's own
	printed sync.Mutex // serializes the lines of services that start at once
}

// step prints one step.
func (r *runner) step(kind, name, did string) {
	r.printed.Lock()
	defer r.printed.Unlock()
	_, _ = fmt.Fprintf(r.a.Stderr, " %s %s  %s\n", kind, base.Printable(name), did)
}

// warn prints a message.
func (r *runner) warn(format string, args ...any) {
	r.printed.Lock()
	defer r.printed.Unlock()
	r.a.Warn("%s", base.Printable(fmt.Sprintf(format, args...)))
}

// named returns an error with the name of its object. The text is that for people, because the text of a call's error would
// replace the name later.
func (r *runner) named(name string, err error) error {
	return fmt.Errorf("%s: %s", name, r.a.Explain(err))
}

// containers returns the project's containers in the order of their services and numbers.
func (r *runner) containers(ctx context.Context) ([]*longshorev1.Container, error) {
	resp, err := r.c.Containers.ListContainers(ctx, &longshorev1.ListContainersRequest{
		Owner: owner, All: true, Labels: map[string]string{composefile.LabelProject: r.name},
	})
	if err != nil {
		return nil, err
	}
	list := resp.GetContainers()
	slices.SortFunc(list, func(a, b *longshorev1.Container) int {
		return cmp.Or(cmp.Compare(serviceOf(a), serviceOf(b)), cmp.Compare(numberOf(a), numberOf(b)), strings.Compare(a.GetName(), b.GetName()))
	})
	return list, nil
}

// containersOf returns the containers of one service, without those of single commands.
func (r *runner) containersOf(ctx context.Context, service string) ([]*longshorev1.Container, error) {
	list, err := r.containers(ctx)
	return slices.DeleteFunc(list, func(c *longshorev1.Container) bool { return serviceOf(c) != service || oneOff(c) }), err
}

func serviceOf(c *longshorev1.Container) string { return c.GetLabels()[composefile.LabelService] }

func oneOff(c *longshorev1.Container) bool { return c.GetLabels()[composefile.LabelOneOff] == "True" }

// numberOf returns a container's number in its service, 0 without one.
func numberOf(c *longshorev1.Container) int {
	n, err := strconv.Atoi(c.GetLabels()[composefile.LabelNumber])
	if err != nil {
		return 0
	}
	return n
}

func running(c *longshorev1.Container) bool {
	return slices.Contains([]string{"running", "paused", "asleep"}, c.GetState())
}

// active reports whether a container runs, or will be started by its restart policy.
func active(c *longshorev1.Container) bool { return running(c) || c.GetState() == restarting }

// restarting is the state between two starts by a restart policy.
const restarting = "restarting"

// watch calls done now and after each event of the containers, until it returns true or an error.
func (r *runner) watch(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.c.Node.Events(ctx, &longshorev1.EventsRequest{Since: timestamppb.Now(), Follow: true, Owner: owner})
	if err != nil {
		return err
	}
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return errGone
		} else if err != nil {
			return err
		}
	}
}

// errGone means that the agent has gone.
var errGone = errors.New("the agent ended the stream of its events")

// gone reports whether an error means that the agent has gone.
func gone(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	code := status.Code(err)
	return errors.Is(err, errGone) || code == codes.Unavailable || code == codes.Canceled
}

// together calls fn for all containers of one service at once.
func together(list []*longshorev1.Container, service string, fn func(*longshorev1.Container) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(list))
	for i, c := range list {
		if serviceOf(c) == service {
			wg.Go(func() { errs[i] = fn(c) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// graph says which services are done before a service.
type graph map[string][]string

// upTo returns the part of the graph that name needs, with name.
func (g graph) upTo(name string) graph {
	out := graph{name: g[name]}
	for _, b := range g[name] {
		maps.Copy(out, g.upTo(b))
	}
	return out
}

// reversed returns the graph of the opposite order.
func (g graph) reversed() graph {
	out := graph{}
	for name, before := range g {
		if _, ok := out[name]; !ok {
			out[name] = nil
		}
		for _, b := range before {
			out[b] = append(out[b], name)
		}
	}
	return out
}

// order returns the names so that each stands behind those before it. A circle is broken somewhere.
func (g graph) order() (list []string) {
	seen := map[string]bool{}
	var visit func(string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, b := range g[name] {
			visit(b)
		}
		if _, ok := g[name]; ok {
			list = append(list, name)
		}
	}
	names := make([]string, 0, len(g))
	for name := range g {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		visit(name)
	}
	return list
}

// walk calls fn for each service at once, after it has returned for those before it. fn gets the errors of these.
func (g graph) walk(fn func(name string, failed map[string]error) error) map[string]error {
	var mu sync.Mutex // guards errs
	errs := map[string]error{}
	done := map[string]chan struct{}{}
	list := g.order()
	place := map[string]int{}
	for i, name := range list {
		done[name], place[name] = make(chan struct{}), i
	}
	var wg sync.WaitGroup
	for _, name := range list {
		wg.Go(func() {
			defer close(done[name])
			failed := map[string]error{}
			for _, b := range g[name] {
				if done[b] == nil || place[b] >= place[name] {
					continue // not of this project, or a circle
				}
				<-done[b]
				mu.Lock()
				if errs[b] != nil {
					failed[b] = errs[b]
				}
				mu.Unlock()
			}
			err := fn(name, failed)
			mu.Lock()
			defer mu.Unlock()
			errs[name] = err
		})
	}
	wg.Wait()
	return errs
}

// graphOf returns the order of the services of containers: that of the files or, for services that they do not have, that of the
// labels. It also has the services of the files that have no containers: one with containers may need another through them.
func graphOf(list []*longshorev1.Container, files map[string][]string) graph {
	g := graph{}
	maps.Copy(g, files)
	for _, c := range list {
		name := serviceOf(c)
		if _, ok := files[name]; ok {
			continue
		}
		if _, ok := g[name]; !ok {
			g[name] = nil
		}
		for dep := range strings.SplitSeq(c.GetLabels()[composefile.LabelDependsOn], ",") {
			if service, _, _ := strings.Cut(dep, ":"); service != "" && !slices.Contains(g[name], service) {
				g[name] = append(g[name], service)
			}
		}
	}
	return g
}
