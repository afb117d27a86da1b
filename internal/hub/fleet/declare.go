package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// Declaration is the complete declaration of a stack: objects that are not in it are removed.
type Declaration struct {
	Name     string            `json:"name"`
	Services []json.RawMessage `json:"services"` // ServiceSpecs, as JSON of protobuf
	Secrets  map[string][]byte `json:"secrets"`
	Configs  map[string][]byte `json:"configs"`
	// Secrets and configs that services need and that are not the stack's: they exist already, and
	// stay. By the services' names for them.
	ExternalSecrets map[string]External `json:"externalSecrets,omitempty"`
	ExternalConfigs map[string]External `json:"externalConfigs,omitempty"`
}

// External is an existing secret or config with a name.
type External struct {
	Name string `json:"name"`
	// At is the line of a file that names it, for the error when there is none.
	At string `json:"at,omitempty"`
}

// Difference is the effect of a declaration on one object.
type Difference struct {
	Kind   string `json:"kind"` // service, secret or config
	Name   string `json:"name"`
	Change string `json:"change"` // create, update, remove or none
}

// Stack is the label with a service's stack, as docker's command line has it.
const Stack = "com.docker.stack.namespace"

// Declared is the label of a secret or config that a declaration has made. It goes when nothing
// needs it any more; others stay until they are removed.
const Declared = "longshore.declared"

// The limits of a declaration. MaxBytes is that of its JSON.
const (
	MaxBytes     = 8 << 20
	maxServices  = 100
	maxSpec      = 256 << 10
	maxData      = 500 << 10
	maxReplicas  = 10_000
	maxParallel  = 10_000
	maxReference = 1000
)

// The names of stacks, and those of services, secrets and configs.
var (
	stackName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	thingName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,126}$`)
)

// Apply stores a declaration in one transaction, or, when dry, only returns its changes.
func Apply(ctx context.Context, b *inventory.Inventory, d Declaration, dry bool) ([]Difference, error) {
	for {
		changed, turn := b.Next(), b.Turn()
		diff, err := apply(ctx, b, d, turn, dry)
		if !errdefs.IsAborted(err) {
			return diff, err
		}
		select { // the state of an update is stored meanwhile, or another declaration
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if b.Turn().If != turn.If {
			return nil, fmt.Errorf("apply %s: it was changed meanwhile by someone else; apply again: %w", d.Name, errdefs.ErrAborted)
		}
	}
}

// apply applies a declaration to the records as they are. Aborted when they were changed meanwhile.
func apply(ctx context.Context, b *inventory.Inventory, d Declaration, turn store.Write, dry bool) ([]Difference, error) {
	specs, err := d.validate()
	if err != nil {
		return nil, err
	}
	a := &application{b: b, d: d, now: timestamppb.Now(), writes: []store.Write{turn}}
	if err := a.secrets(specs); err != nil {
		return nil, err
	}
	a.services(specs)
	slices.SortFunc(a.diff, func(x, y Difference) int { return strings.Compare(x.Kind+" "+x.Name, y.Kind+" "+y.Name) })
	if dry || len(a.writes) == 1 {
		return a.diff, nil
	}
	things := len(a.writes) - 1
	if more := len(events.With(ctx, a.writes)) - things; things+more > store.MaxWrites {
		return nil, invalid.Errorf("the declaration changes %d things at once; at most %d can be stored in one transaction", things, store.MaxWrites-more)
	}
	if _, err := b.Commit(ctx, a.writes...); err != nil {
		return nil, err
	}
	return a.diff, nil
}

// validate reads the services, all before anything is stored.
func (d Declaration) validate() ([]*swarmv1.ServiceSpec, error) {
	if !stackName.MatchString(d.Name) {
		return nil, invalid.Errorf("the name of the stack %.80q: small letters, digits, - and _, at most 63", d.Name)
	}
	if len(d.Services) > maxServices {
		return nil, invalid.Errorf("%d services, at most %d in one declaration", len(d.Services), maxServices)
	}
	for kind, all := range map[string]map[string][]byte{"secret": d.Secrets, "config": d.Configs} {
		for name, data := range all {
			if !thingName.MatchString(name) {
				return nil, invalid.Errorf("the name of the %s %.80q: letters, digits, '.', '-' and '_', at most 127", kind, name)
			}
			if len(data) > maxData {
				return nil, invalid.Errorf("the %s %s has %d bytes, at most %d", kind, name, len(data), maxData)
			}
		}
	}
	for _, kind := range []Kind{SecretKind, ConfigKind} {
		own, external := d.files(kind)
		for name, e := range external {
			if _, both := own[name]; both || !thingName.MatchString(name) || !thingName.MatchString(e.Name) {
				return nil, invalid.Errorf("the external %s %.80q, which is %.80q: names have letters, digits, '.', '-' and '_', at most 127, and each is once in a declaration", kind, name, e.Name)
			}
		}
	}
	var specs []*swarmv1.ServiceSpec
	names := map[string]bool{}
	for _, raw := range d.Services {
		spec := new(swarmv1.ServiceSpec)
		if len(raw) > maxSpec {
			return nil, invalid.Errorf("a service has %d bytes, at most %d", len(raw), maxSpec)
		}
		if err := (protojson.UnmarshalOptions{RecursionLimit: 50}).Unmarshal(raw, spec); err != nil {
			return nil, invalid.Errorf("a service cannot be read: %w", err)
		}
		name := spec.GetAnnotations().GetName()
		if !thingName.MatchString(name) || names[name] {
			return nil, invalid.Errorf("the name of the service %.80q: letters, digits, '.', '-' and '_', at most 127, and each once", name)
		}
		names[name] = true
		if err := d.service(spec); err != nil {
			return nil, fmt.Errorf("service %s: %w", name, err)
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// check refuses a service that the hub cannot run. It does not check for the service's secrets and
// configs.
func check(spec *swarmv1.ServiceSpec) error {
	c := spec.GetTask().GetContainer()
	switch {
	case c == nil:
		return invalid.Errorf("it has no container")
	case c.GetImage() == "":
		return invalid.Errorf("it has no image")
	case len(spec.GetNetworks()) > 0:
		return invalid.Errorf("networks of the service spec are not supported; use those of the task")
	case len(c.GetSecrets())+len(c.GetConfigs())+len(c.GetMounts())+len(spec.GetEndpoint().GetPorts()) > maxReference:
		return invalid.Errorf("it has more than %d secrets, configs, mounts and ports", maxReference)
	}
	switch mode := spec.GetMode().(type) {
	case *swarmv1.ServiceSpec_Global:
	case *swarmv1.ServiceSpec_Replicated:
		if mode.Replicated.GetReplicas() > maxReplicas {
			return invalid.Errorf("%d replicas, at most %d", mode.Replicated.GetReplicas(), maxReplicas)
		}
	default:
		return invalid.Errorf("it is neither global nor replicated")
	}
	if err := checkNetworks(spec); err != nil {
		return err
	}
	if err := checkUpdates(spec); err != nil {
		return err
	}
	if err := checkMoveAfter(spec); err != nil {
		return err
	}
	switch {
	case len(spec.GetTask().GetPlacement().GetPreferences()) > 0:
		return invalid.Errorf("placement preferences are not supported")
	case len(spec.GetTask().GetPlacement().GetPlatforms()) > 0:
		return invalid.Errorf("platforms are not supported: use constraints on node.platform.os and node.platform.arch")
	case len(spec.GetTask().GetResources().GetReservations().GetGeneric()) > 0:
		return invalid.Errorf("generic resources are not supported")
	}
	for _, text := range spec.GetTask().GetPlacement().GetConstraints() {
		if _, err := parseConstraint(text); err != nil {
			return invalid.Errorf("%w", err)
		}
	}
	published := map[string]bool{}
	for _, p := range spec.GetEndpoint().GetPorts() {
		switch {
		case p.GetPublishMode() != swarmv1.PortConfig_HOST:
			return invalid.Errorf("port %d has the mode ingress; only the mode host is supported", p.GetTargetPort())
		case p.GetTargetPort() == 0 || p.GetTargetPort() > 65535 || p.GetPublishedPort() > 65535:
			return invalid.Errorf("port %d to %d is not valid", p.GetPublishedPort(), p.GetTargetPort())
		case p.GetPublishedPort() != 0 && published[portName(p)]:
			return invalid.Errorf("port %s is published twice", strings.ToLower(portName(p)))
		}
		published[portName(p)] = true
	}
	for _, m := range c.GetMounts() {
		if !path.IsAbs(m.GetTarget()) || m.GetTarget() != path.Clean(m.GetTarget()) {
			return invalid.Errorf("the mount's target %q is not a clean absolute path", m.GetTarget())
		}
		if m.GetType() == swarmv1.Mount_BIND && !path.IsAbs(m.GetSource()) {
			return invalid.Errorf("the mount's source %q is not an absolute path", m.GetSource())
		}
		if m.GetType() > swarmv1.Mount_TMPFS {
			return invalid.Errorf("mounts of the type %s are not possible", strings.ToLower(m.GetType().String()))
		}
	}
	return nil
}

// service checks one service of it.
func (d Declaration) service(spec *swarmv1.ServiceSpec) error {
	if err := check(spec); err != nil {
		return err
	}
	c := spec.GetTask().GetContainer()
	for _, r := range c.GetSecrets() {
		if !d.has(SecretKind, r.GetSecretName()) {
			return invalid.Errorf("it needs the secret %q, which is not declared", r.GetSecretName())
		}
	}
	for _, r := range c.GetConfigs() {
		if !d.has(ConfigKind, r.GetConfigName()) {
			return invalid.Errorf("it needs the config %q, which is not declared", r.GetConfigName())
		}
	}
	return nil
}

// files are the secrets or configs of a declaration, and those that it names.
func (d Declaration) files(k Kind) (own map[string][]byte, external map[string]External) {
	if k == SecretKind {
		return d.Secrets, d.ExternalSecrets
	}
	return d.Configs, d.ExternalConfigs
}

func (d Declaration) has(k Kind, name string) bool {
	own, external := d.files(k)
	_, declared := own[name]
	_, named := external[name]
	return declared || named
}

// application is one declaration that is applied.
type application struct {
	b      *inventory.Inventory
	d      Declaration
	now    *timestamppb.Timestamp
	writes []store.Write
	diff   []Difference
	ids    map[string]string // of secrets and configs, by kind and name
}

func (a *application) changed(kind, name, change string) {
	a.diff = append(a.diff, Difference{kind, name, change})
}

// secrets gives secrets and configs their ids. Changed content makes another object, so that
// services are updated to it; unused ones are deleted later.
func (a *application) secrets(specs []*swarmv1.ServiceSpec) (err error) {
	a.ids = map[string]string{}
	has := map[string]string{} // the names that there are, and an id with the content
	label := map[string]string{Stack: a.d.Name, Declared: "yes"}
	a.adopt(label)
	for id, s := range a.b.Secrets() {
		note(has, "secret ", s.M.GetSpec().GetAnnotations(), a.d.Name, id, bytes.Equal(s.M.GetSpec().GetData(), a.d.Secrets[bare(a.d.Name, s.M.GetSpec().GetAnnotations())]))
	}
	for id, c := range a.b.Configs() {
		note(has, "config ", c.M.GetSpec().GetAnnotations(), a.d.Name, id, bytes.Equal(c.M.GetSpec().GetData(), a.d.Configs[bare(a.d.Name, c.M.GetSpec().GetAnnotations())]))
	}
	meta := &swarmv1.Meta{CreatedAt: a.now, UpdatedAt: a.now}
	for _, name := range slices.Sorted(maps.Keys(a.d.Secrets)) {
		if a.known(has, "secret ", name) {
			continue
		}
		id := ca.NewID()
		a.ids["secret "+name] = id
		a.writes = append(a.writes, inventory.Put(inventory.Secrets, id, &swarmv1.Secret{
			Id: id, Meta: meta, Spec: &swarmv1.SecretSpec{Annotations: &swarmv1.Annotations{Name: a.d.Name + "_" + name, Labels: label}, Data: a.d.Secrets[name]},
		}, store.Absent))
	}
	for _, name := range slices.Sorted(maps.Keys(a.d.Configs)) {
		if a.known(has, "config ", name) {
			continue
		}
		id := ca.NewID()
		a.ids["config "+name] = id
		a.writes = append(a.writes, inventory.Put(inventory.Configs, id, &swarmv1.Config{
			Id: id, Meta: meta, Spec: &swarmv1.ConfigSpec{Annotations: &swarmv1.Annotations{Name: a.d.Name + "_" + name, Labels: label}, Data: a.d.Configs[name]},
		}, store.Absent))
	}
	for _, spec := range specs {
		for _, r := range spec.GetTask().GetContainer().GetSecrets() {
			if r.SecretId, r.SecretName, err = a.refer(SecretKind, r.GetSecretName()); err != nil {
				return err
			}
		}
		for _, r := range spec.GetTask().GetContainer().GetConfigs() {
			if r.ConfigId, r.ConfigName, err = a.refer(ConfigKind, r.GetConfigName()); err != nil {
				return err
			}
		}
	}
	return nil
}

// refer returns the id and the full name of a secret or config of a service.
func (a *application) refer(k Kind, name string) (id, full string, err error) {
	_, all := a.d.files(k)
	e, external := all[name]
	if !external {
		return a.ids[string(k)+" "+name], a.d.Name + "_" + name, nil
	}
	id, ok := named(a.b, k, e.Name)
	if !ok {
		err = invalid.Errorf("%ss.%s is external, and there is no %s %s", k, name, k, e.Name)
		if e.At != "" {
			err = fmt.Errorf("%.300s: %w", e.At, err)
		}
	}
	return id, e.Name, err
}

// bare is a thing's name within its stack.
func bare(stack string, at *swarmv1.Annotations) string {
	return strings.TrimPrefix(at.GetName(), stack+"_")
}

// note records an existing object: with its id if its content is the declared one.
func note(has map[string]string, kind string, at *swarmv1.Annotations, stack, id string, same bool) {
	if at.GetLabels()[Stack] != stack {
		return
	}
	key := kind + bare(stack, at)
	if same {
		has[key] = id
	} else if _, ok := has[key]; !ok {
		has[key] = ""
	}
}

// known records the difference of a secret or config, and reports whether it exists as declared.
func (a *application) known(has map[string]string, kind, name string) bool {
	id, there := has[kind+name]
	change := "create"
	switch {
	case id != "":
		a.ids[kind+name] = id
		change = "none"
	case there:
		change = "update"
	}
	a.changed(strings.TrimSpace(kind), name, change)
	return id != ""
}

// services creates, changes and removes services.
func (a *application) services(specs []*swarmv1.ServiceSpec) {
	before := map[string]inventory.Record[*swarmv1.Service]{}
	for _, s := range a.b.Services() {
		if s.M.GetSpec().GetAnnotations().GetLabels()[Stack] == a.d.Name {
			before[bare(a.d.Name, s.M.GetSpec().GetAnnotations())] = s
		}
	}
	for _, spec := range specs {
		name := spec.GetAnnotations().GetName()
		a.d.label(spec)
		normalize(spec)
		s, there := before[name]
		if there {
			keep(spec, s.M.GetSpec())
		}
		delete(before, name)
		switch {
		case !there:
			id := ca.NewID()
			a.changed("service", name, "create")
			a.writes = append(a.writes, inventory.Put(inventory.Services, id, &swarmv1.Service{
				Id: id, Meta: &swarmv1.Meta{CreatedAt: a.now, UpdatedAt: a.now}, Spec: spec, SpecVersion: &swarmv1.Version{Index: 1},
			}, store.Absent))
		case proto.Equal(s.M.GetSpec(), spec):
			a.changed("service", name, "none")
		default:
			a.changed("service", name, "update")
			a.writes = append(a.writes, inventory.Put(inventory.Services, s.M.GetId(), Replace(s.M, spec, a.now.AsTime()), s.Rev))
		}
	}
	for name, s := range before {
		a.changed("service", name, "remove")
		a.writes = append(a.writes, inventory.Delete(inventory.Services, s.M.GetId(), s.Rev))
	}
}
