// Package translate translates requests of docker's command line to the hub's own messages. It
// refuses settings that a hub does not have by their names, and never drops them.
//
// It knows no records and stores nothing. Start at Service.
package translate

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"time"

	"github.com/moby/moby/api/types/swarm"
	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/invalid"
)

// decode reads one JSON value. A key that is not known is refused.
func decode(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			return invalid.Errorf("the request has no body")
		}
		return invalid.Errorf("the request cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid.Errorf("the request has more than one value")
	}
	return nil
}

// Service reads the body that creates or updates a service.
func Service(data []byte) (*swarmv1.ServiceSpec, error) {
	var body struct {
		swarm.ServiceSpec
		Networks []swarm.NetworkAttachmentConfig // where clients had them before they were the task's
	}
	if err := decode(data, &body); err != nil {
		return nil, err
	}
	s := &body.ServiceSpec
	spec := &swarmv1.ServiceSpec{Annotations: annotations(s.Annotations), Task: &swarmv1.TaskSpec{}}
	var err error
	if err = mode(spec, s.Mode); err != nil {
		return nil, err
	}
	if spec.Update, err = update("UpdateConfig", s.UpdateConfig); err != nil {
		return nil, err
	}
	if spec.Rollback, err = update("RollbackConfig", s.RollbackConfig); err != nil {
		return nil, err
	}
	if spec.Endpoint, err = endpoint(s.EndpointSpec); err != nil {
		return nil, err
	}
	if err = task(spec.GetTask(), s.TaskTemplate); err != nil {
		return nil, err
	}
	if spec.GetTask().GetNetworks() == nil {
		spec.GetTask().Networks, err = networks(body.Networks)
	}
	return spec, err
}

func annotations(a swarm.Annotations) *swarmv1.Annotations {
	return &swarmv1.Annotations{Name: a.Name, Labels: a.Labels}
}

func mode(spec *swarmv1.ServiceSpec, m swarm.ServiceMode) error {
	if m.ReplicatedJob != nil || m.GlobalJob != nil {
		return invalid.Errorf("jobs are not possible here: only replicated and global services")
	}
	if m.Global != nil && m.Replicated != nil {
		return invalid.Errorf("a service cannot be both global and replicated")
	}
	if m.Global != nil {
		spec.Mode = &swarmv1.ServiceSpec_Global{Global: &swarmv1.GlobalService{}}
		return nil
	}
	n := uint64(1)
	if m.Replicated != nil && m.Replicated.Replicas != nil {
		n = *m.Replicated.Replicas
	}
	spec.Mode = &swarmv1.ServiceSpec_Replicated{Replicated: &swarmv1.ReplicatedService{Replicas: n}}
	return nil
}

// one is the number of a word: "" is the first one's.
func one(what, word string, all map[string]int32) (int32, error) {
	if word == "" {
		return 0, nil
	}
	n, ok := all[strings.ToUpper(strings.ReplaceAll(word, "-", "_"))]
	if !ok || word != strings.ToLower(word) {
		return 0, invalid.Errorf("%s %.80q is unknown", what, word)
	}
	return n, nil
}

func update(what string, u *swarm.UpdateConfig) (*swarmv1.UpdateConfig, error) {
	if u == nil {
		return nil, nil
	}
	action, err := one(what+".FailureAction", string(u.FailureAction), swarmv1.UpdateConfig_FailureAction_value)
	if err != nil {
		return nil, err
	}
	order, err := one(what+".Order", string(u.Order), swarmv1.UpdateConfig_UpdateOrder_value)
	if err != nil {
		return nil, err
	}
	c := &swarmv1.UpdateConfig{
		Parallelism: u.Parallelism, FailureAction: swarmv1.UpdateConfig_FailureAction(action), MaxFailureRatio: u.MaxFailureRatio, Order: swarmv1.UpdateConfig_UpdateOrder(order),
	}
	switch {
	case u.Delay < 0 || u.Monitor < 0:
		return nil, invalid.Errorf("%s: times cannot be negative", what)
	case !(u.MaxFailureRatio >= 0 && u.MaxFailureRatio <= 1):
		return nil, invalid.Errorf("%s.MaxFailureRatio is a number from 0 to 1", what)
	}
	c.Delay, c.Monitor = duration(u.Delay), duration(u.Monitor)
	return c, nil
}

// duration is a time, nil for none.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// optional translates a duration that may be absent.
func optional(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func endpoint(e *swarm.EndpointSpec) (*swarmv1.EndpointSpec, error) {
	if e == nil {
		return nil, nil
	}
	n, err := one("EndpointSpec.Mode", string(e.Mode), swarmv1.EndpointSpec_ResolutionMode_value)
	if err != nil {
		return nil, err
	}
	spec := &swarmv1.EndpointSpec{Mode: swarmv1.EndpointSpec_ResolutionMode(n)}
	for _, p := range e.Ports {
		protocol, err := one("the protocol of a port", string(p.Protocol), swarmv1.PortConfig_Protocol_value)
		if err != nil {
			return nil, err
		}
		publish, err := one("the mode of a port", string(p.PublishMode), swarmv1.PortConfig_PublishMode_value)
		if err != nil {
			return nil, err
		}
		if swarmv1.PortConfig_PublishMode(publish) == swarmv1.PortConfig_INGRESS {
			return nil, invalid.Errorf("port %d has the mode ingress, which a hub's nodes do not support: publish it with mode=host", p.TargetPort)
		}
		spec.Ports = append(spec.GetPorts(), &swarmv1.PortConfig{
			Name: p.Name, Protocol: swarmv1.PortConfig_Protocol(protocol), TargetPort: p.TargetPort, PublishedPort: p.PublishedPort, PublishMode: swarmv1.PortConfig_PublishMode(publish),
		})
	}
	return spec, nil
}

func networks(all []swarm.NetworkAttachmentConfig) (list []*swarmv1.NetworkAttachmentConfig, err error) {
	for _, n := range all {
		if len(n.DriverOpts) > 0 {
			return nil, invalid.Errorf("options of the driver of the network %.80q are not possible here", n.Target)
		}
		list = append(list, &swarmv1.NetworkAttachmentConfig{Target: n.Target, Aliases: n.Aliases})
	}
	return list, nil
}

func task(t *swarmv1.TaskSpec, from swarm.TaskSpec) (err error) {
	switch {
	case from.PluginSpec != nil || from.Runtime == swarm.RuntimePlugin:
		return invalid.Errorf("plugins as services are not possible here")
	case from.NetworkAttachmentSpec != nil || from.Runtime != "" && from.Runtime != swarm.RuntimeContainer:
		return invalid.Errorf("the runtime %.80q is not possible here, only containers", from.Runtime)
	case from.ContainerSpec == nil:
		return invalid.Errorf("TaskTemplate.ContainerSpec is missing")
	}
	c, err := container(from.ContainerSpec)
	if err != nil {
		return err
	}
	t.Runtime, t.ForceUpdate, t.LogDriver = &swarmv1.TaskSpec_Container{Container: c}, from.ForceUpdate, driver(from.LogDriver)
	if err = resources(t, c, from.Resources); err != nil {
		return err
	}
	if t.Restart, err = restart(from.RestartPolicy); err != nil {
		return err
	}
	if t.Networks, err = networks(from.Networks); err != nil {
		return err
	}
	if p := from.Placement; p != nil {
		t.Placement = &swarmv1.Placement{Constraints: p.Constraints, MaxReplicas: p.MaxReplicas}
		for _, pref := range p.Preferences {
			if pref.Spread != nil {
				t.Placement.Preferences = append(t.GetPlacement().GetPreferences(), &swarmv1.PlacementPreference{
					Preference: &swarmv1.PlacementPreference_Spread{Spread: &swarmv1.SpreadOver{SpreadDescriptor: pref.Spread.SpreadDescriptor}},
				})
			}
		}
		for _, f := range p.Platforms {
			t.Placement.Platforms = append(t.GetPlacement().GetPlatforms(), &swarmv1.Platform{Architecture: f.Architecture, Os: f.OS})
		}
	}
	return nil
}

func driver(d *swarm.Driver) *swarmv1.Driver {
	if d == nil {
		return nil
	}
	return &swarmv1.Driver{Name: d.Name, Options: d.Options}
}

func restart(p *swarm.RestartPolicy) (*swarmv1.RestartPolicy, error) {
	if p == nil {
		return nil, nil
	}
	r := &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_ANY, Delay: optional(p.Delay), Window: optional(p.Window)}
	if p.Condition != "" {
		n, err := one("RestartPolicy.Condition", string(p.Condition), swarmv1.RestartPolicy_RestartCondition_value)
		if err != nil {
			return nil, err
		}
		r.Condition = swarmv1.RestartPolicy_RestartCondition(n)
	}
	if p.MaxAttempts != nil {
		r.MaxAttempts = *p.MaxAttempts
	}
	if r.GetDelay().AsDuration() < 0 || r.GetWindow().AsDuration() < 0 {
		return nil, invalid.Errorf("RestartPolicy: times cannot be negative")
	}
	return r, nil
}

// Data is the body that creates or updates a secret or a config.
type Data struct {
	Annotations *swarmv1.Annotations
	Data        []byte
	Templating  *swarmv1.Driver
}

// Secret reads the body of a secret, Config that of a config.
func Secret(data []byte) (Data, error) {
	var body swarm.SecretSpec
	if err := decode(data, &body); err != nil {
		return Data{}, err
	}
	if body.Driver != nil {
		return Data{}, invalid.Errorf("the secret's driver %.80q: a hub stores secrets itself and supports no drivers", body.Driver.Name)
	}
	return Data{annotations(body.Annotations), body.Data, driver(body.Templating)}, nil
}

// Config reads the body of a config.
func Config(data []byte) (Data, error) {
	var body swarm.ConfigSpec
	if err := decode(data, &body); err != nil {
		return Data{}, err
	}
	return Data{annotations(body.Annotations), body.Data, driver(body.Templating)}, nil
}

// Node reads the body that changes a node.
func Node(data []byte) (*swarmv1.NodeSpec, error) {
	var body swarm.NodeSpec
	if err := decode(data, &body); err != nil {
		return nil, err
	}
	role, err := one("Role", string(body.Role), swarmv1.NodeRole_value)
	if err != nil {
		return nil, err
	}
	availability, err := one("Availability", string(body.Availability), swarmv1.NodeSpec_Availability_value)
	if err != nil {
		return nil, err
	}
	return &swarmv1.NodeSpec{
		Annotations: annotations(body.Annotations), DesiredRole: swarmv1.NodeRole(role), Availability: swarmv1.NodeSpec_Availability(availability),
	}, nil
}

// Cluster reads the body that changes a Swarm.
func Cluster(data []byte) (swarm.Spec, error) {
	var body swarm.Spec
	return body, decode(data, &body)
}

// Network reads the name and the driver of a network to create. The other settings do not matter.
func Network(data []byte) (name, driver string, err error) {
	var body struct{ Name, Driver string }
	if err := json.Unmarshal(data, &body); err != nil {
		return "", "", invalid.Errorf("the request cannot be read: %w", err)
	}
	return body.Name, body.Driver, nil
}

// Auth checks a client's credentials for registries (X-Registry-Auth), and returns them in the form
// for workers; "" if they are empty.
func Auth(header string) (string, error) {
	c, err := dockerhttp.ParseAuth(header)
	if err != nil || c == (dockerhttp.Credentials{}) {
		return "", err
	}
	return header, nil
}

// bounded is a number that must fit.
func bounded(what string, n int64) (int32, error) {
	if n < math.MinInt32 || n > math.MaxInt32 {
		return 0, invalid.Errorf("%s: %d is too large", what, n)
	}
	return int32(n), nil
}
