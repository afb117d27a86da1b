// Package view shows the hub's records in the form for docker's command line. Its answers never
// contain secrets and registries' credentials.
//
// What is shown is given. Start at Service, Task and Node.
package view

import (
	"net/netip"
	"strings"
	"time"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/swarm"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// at is a time, in UTC; the zero one for none.
func at(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func atOrNil(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	v := t.AsTime()
	return &v
}

func duration(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	v := d.AsDuration()
	return &v
}

func meta(m *swarmv1.Meta, rev int64) swarm.Meta {
	return swarm.Meta{Version: swarm.Version{Index: uint64(max(rev, 0))}, CreatedAt: at(m.GetCreatedAt()), UpdatedAt: at(m.GetUpdatedAt())}
}

func annotations(a *swarmv1.Annotations) swarm.Annotations {
	labels := a.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	return swarm.Annotations{Name: a.GetName(), Labels: labels}
}

// word is an enumeration's value as Docker writes it.
func word(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

func driver(d *swarmv1.Driver) *swarm.Driver {
	if d == nil {
		return nil
	}
	return &swarm.Driver{Name: d.GetName(), Options: d.GetOptions()}
}

// Service is a service as it was at a revision.
func Service(s *swarmv1.Service, rev int64) swarm.Service {
	v := swarm.Service{ID: s.GetId(), Meta: meta(s.GetMeta(), rev), Spec: Spec(s.GetSpec())}
	if p := s.GetPreviousSpec(); p != nil {
		spec := Spec(p)
		v.PreviousSpec = &spec
	}
	if e := v.Spec.EndpointSpec; e != nil {
		v.Endpoint = swarm.Endpoint{Spec: *e, Ports: e.Ports}
	}
	if u := s.GetUpdateStatus(); u.GetState() != swarmv1.UpdateStatus_UNKNOWN {
		v.UpdateStatus = &swarm.UpdateStatus{
			State: swarm.UpdateState(strings.ToLower(u.GetState().String())), StartedAt: atOrNil(u.GetStartedAt()), CompletedAt: atOrNil(u.GetCompletedAt()), Message: u.GetMessage(),
		}
	}
	return v
}

// Spec shows the declaration of a service.
func Spec(s *swarmv1.ServiceSpec) swarm.ServiceSpec {
	v := swarm.ServiceSpec{
		Annotations: annotations(s.GetAnnotations()), TaskTemplate: TaskSpec(s.GetTask()), UpdateConfig: update(s.GetUpdate()), RollbackConfig: update(s.GetRollback()),
		EndpointSpec: endpoint(s.GetEndpoint()),
	}
	if s.GetGlobal() != nil {
		v.Mode.Global = &swarm.GlobalService{}
	} else {
		n := s.GetReplicated().GetReplicas()
		v.Mode.Replicated = &swarm.ReplicatedService{Replicas: &n}
	}
	return v
}

func update(u *swarmv1.UpdateConfig) *swarm.UpdateConfig {
	if u == nil {
		return nil
	}
	return &swarm.UpdateConfig{
		Parallelism: u.GetParallelism(), Delay: u.GetDelay().AsDuration(), FailureAction: swarm.FailureAction(word(u.GetFailureAction().String())), Monitor: u.GetMonitor().AsDuration(),
		MaxFailureRatio: u.GetMaxFailureRatio(), Order: swarm.UpdateOrder(word(u.GetOrder().String())),
	}
}

func endpoint(e *swarmv1.EndpointSpec) *swarm.EndpointSpec {
	if e == nil {
		return nil
	}
	return &swarm.EndpointSpec{Mode: swarm.ResolutionMode(word(e.GetMode().String())), Ports: ports(e.GetPorts())}
}

func ports(all []*swarmv1.PortConfig) (list []swarm.PortConfig) {
	for _, p := range all {
		list = append(list, swarm.PortConfig{
			Name: p.GetName(), Protocol: network.IPProtocol(word(p.GetProtocol().String())), TargetPort: p.GetTargetPort(), PublishedPort: p.GetPublishedPort(),
			PublishMode: swarm.PortConfigPublishMode(word(p.GetPublishMode().String())),
		})
	}
	return list
}

// TaskSpec shows the spec of a task.
func TaskSpec(t *swarmv1.TaskSpec) swarm.TaskSpec {
	c := t.GetContainer()
	v := swarm.TaskSpec{
		ContainerSpec: container(c), Resources: resources(t.GetResources(), c.GetPidsLimit()), LogDriver: driver(t.GetLogDriver()), ForceUpdate: t.GetForceUpdate(), Runtime: swarm.RuntimeContainer,
	}
	if r := t.GetRestart(); r != nil {
		n := r.GetMaxAttempts()
		v.RestartPolicy = &swarm.RestartPolicy{
			Condition: swarm.RestartPolicyCondition(word(r.GetCondition().String())), Delay: duration(r.GetDelay()), MaxAttempts: &n, Window: duration(r.GetWindow()),
		}
	}
	p := t.GetPlacement() // docker service update --replicas-max-per-node writes to it without checking for nil
	v.Placement = &swarm.Placement{Constraints: p.GetConstraints(), MaxReplicas: p.GetMaxReplicas()}
	for _, pref := range p.GetPreferences() {
		v.Placement.Preferences = append(v.Placement.Preferences, swarm.PlacementPreference{Spread: &swarm.SpreadOver{SpreadDescriptor: pref.GetSpread().GetSpreadDescriptor()}})
	}
	for _, f := range p.GetPlatforms() {
		v.Placement.Platforms = append(v.Placement.Platforms, swarm.Platform{Architecture: f.GetArchitecture(), OS: f.GetOs()})
	}
	for _, n := range t.GetNetworks() {
		v.Networks = append(v.Networks, swarm.NetworkAttachmentConfig{Target: n.GetTarget(), Aliases: n.GetAliases()})
	}
	return v
}

func resources(r *swarmv1.ResourceRequirements, pids int64) *swarm.ResourceRequirements {
	if r == nil && pids == 0 {
		return nil
	}
	v := &swarm.ResourceRequirements{}
	if l := r.GetLimits(); l != nil || pids != 0 {
		v.Limits = &swarm.Limit{NanoCPUs: l.GetNanoCpus(), MemoryBytes: l.GetMemoryBytes(), Pids: pids}
	}
	if x := r.GetReservations(); x != nil {
		v.Reservations = &swarm.Resources{NanoCPUs: x.GetNanoCpus(), MemoryBytes: x.GetMemoryBytes()}
	}
	if r.GetSwapBytes() != nil {
		n := r.GetSwapBytes().GetValue()
		v.SwapBytes = &n
	}
	if r.GetMemorySwappiness() != nil {
		n := r.GetMemorySwappiness().GetValue()
		v.MemorySwappiness = &n
	}
	return v
}

// Task shows a task at a revision, with its reported status and the state that it is to reach.
func Task(t *swarmv1.Task, s *swarmv1.TaskStatus, desired swarmv1.TaskState, rev int64) swarm.Task {
	state := max(s.GetState(), swarmv1.TaskState_ASSIGNED)
	if s.GetState() == swarmv1.TaskState_PENDING { // see fleet.Pending
		state = s.GetState()
	}
	status := swarm.TaskStatus{
		Timestamp: at(s.GetTimestamp()), State: swarm.TaskState(State(state)), Message: s.GetMessage(), Err: s.GetErr(),
		PortStatus: swarm.PortStatus{Ports: ports(s.GetPortStatus().GetPorts())},
	}
	if s == nil {
		status.Timestamp, status.Message = at(t.GetMeta().GetCreatedAt()), "assigned by the hub"
	}
	if c := s.GetContainer(); c != nil {
		status.ContainerStatus = &swarm.ContainerStatus{ContainerID: c.GetContainerId(), PID: int(c.GetPid()), ExitCode: int(c.GetExitCode())}
	}
	return swarm.Task{
		ID: t.GetId(), Meta: meta(t.GetMeta(), rev), Annotations: annotations(t.GetAnnotations()), Spec: TaskSpec(t.GetSpec()), ServiceID: t.GetServiceId(), Slot: int(t.GetSlot()), NodeID: t.GetNodeId(),
		Status: status, DesiredState: swarm.TaskState(State(desired)),
	}
}

// State is a state in docker's words.
func State(s swarmv1.TaskState) string { return word(s.String()) }

// Node is a node as its record was at a revision.
func Node(n *swarmv1.Node, rev int64) swarm.Node {
	d := n.GetDescription()
	v := swarm.Node{
		ID: n.GetId(), Meta: meta(n.GetMeta(), rev),
		Spec: swarm.NodeSpec{Annotations: annotations(n.GetSpec().GetAnnotations()), Role: swarm.NodeRoleWorker, Availability: swarm.NodeAvailability(word(n.GetSpec().GetAvailability().String()))},
		Description: swarm.NodeDescription{
			Hostname: d.GetHostname(), Platform: swarm.Platform{Architecture: d.GetPlatform().GetArchitecture(), OS: d.GetPlatform().GetOs()},
			Resources: swarm.Resources{NanoCPUs: d.GetResources().GetNanoCpus(), MemoryBytes: d.GetResources().GetMemoryBytes()},
			Engine:    swarm.EngineDescription{EngineVersion: d.GetEngine().GetEngineVersion(), Labels: d.GetEngine().GetLabels()},
			TLSInfo:   swarm.TLSInfo{TrustRoot: string(d.GetTlsInfo().GetTrustRoot()), CertIssuerSubject: d.GetTlsInfo().GetCertIssuerSubject(), CertIssuerPublicKey: d.GetTlsInfo().GetCertIssuerPublicKey()},
		},
		Status: swarm.NodeStatus{State: swarm.NodeState(word(n.GetStatus().GetState().String())), Message: n.GetStatus().GetMessage(), Addr: n.GetStatus().GetAddr()},
	}
	for _, p := range d.GetEngine().GetPlugins() {
		v.Description.Engine.Plugins = append(v.Description.Engine.Plugins, swarm.PluginDescription{Type: p.GetType(), Name: p.GetName()})
	}
	if n.GetSpec().GetMembership() == swarmv1.NodeSpec_PENDING {
		v.Status.Message = "waits until it is accepted (longshore-hub node accept)"
	}
	return v
}

// Secret shows a secret without its content.
func Secret(s *swarmv1.Secret, rev int64) swarm.Secret {
	return swarm.Secret{ID: s.GetId(), Meta: meta(s.GetMeta(), rev), Spec: swarm.SecretSpec{Annotations: annotations(s.GetSpec().GetAnnotations()), Templating: driver(s.GetSpec().GetTemplating())}}
}

// Config is a config.
func Config(c *swarmv1.Config, rev int64) swarm.Config {
	return swarm.Config{
		ID: c.GetId(), Meta: meta(c.GetMeta(), rev),
		Spec: swarm.ConfigSpec{Annotations: annotations(c.GetSpec().GetAnnotations()), Data: c.GetSpec().GetData(), Templating: driver(c.GetSpec().GetTemplating())},
	}
}

// address is an IP address, and whether it is one.
func address(text string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	return ip, err == nil
}
