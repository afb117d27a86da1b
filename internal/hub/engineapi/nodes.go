package engineapi

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/swarm"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/hub/engineapi/translate"
	"github.com/longshore/longshore/internal/hub/engineapi/view"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/invalid"
)

func notFound(kind, id string) error {
	return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s %.100s not found", kind, id))
}

// noManagerToken replaces the join token of managers in clients' output: there is none.
const noManagerToken = "NO-TOKEN:a-hub-takes-no-managers-start-another-hub-on-the-same-store" //nolint:gosec // it is none

// swarm serves the fleet as a whole.
func (s Server) swarm(m *routes) {
	m.handle("GET /swarm", func(*http.Request) (answer, error) {
		return ok(swarm.Swarm{ClusterInfo: s.cluster(), JoinTokens: swarm.JoinTokens{Worker: s.Trust.Token(), Manager: noManagerToken}})
	})
	m.handle("POST /swarm/update", s.updateSwarm)
	m.handle("GET /swarm/unlockkey", func(*http.Request) (answer, error) {
		return answer{}, notHere("a hub has no unlock key: its passphrase file seals its records")
	})
	for _, verb := range []string{"init", "join", "leave", "unlock"} {
		m.handle("POST /swarm/"+verb, func(*http.Request) (answer, error) {
			return answer{}, notHere("a hub is always the manager of its fleet: use swarm %s on nodes", verb)
		})
	}
}

// cluster is the fleet as a Swarm.
func (s Server) cluster() swarm.ClusterInfo {
	limit, since := s.Self.TaskHistory, time.Time{}
	root := s.Trust.Roots()
	info := swarm.TLSInfo{TrustRoot: string(root)}
	if block, _ := pem.Decode(root); block != nil {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			info.CertIssuerSubject, info.CertIssuerPublicKey, since = c.RawSubject, c.RawSubjectPublicKeyInfo, c.NotBefore
		}
	}
	return swarm.ClusterInfo{
		ID: s.Self.Cluster, Meta: swarm.Meta{Version: swarm.Version{Index: 1}, CreatedAt: since, UpdatedAt: since},
		Spec: swarm.Spec{
			Annotations: swarm.Annotations{Name: "default", Labels: map[string]string{}}, Orchestration: swarm.OrchestrationConfig{TaskHistoryRetentionLimit: &limit},
			Dispatcher: swarm.DispatcherConfig{HeartbeatPeriod: s.Self.Heartbeat}, CAConfig: swarm.CAConfig{NodeCertExpiry: s.Self.CertificateLife},
		},
		TLSInfo: info, RootRotationInProgress: s.Trust.Rotating(),
	}
}

// updateSwarm rotates the join token of workers, or the root. Other options of a hub are its flags.
func (s Server) updateSwarm(r *http.Request) (answer, error) {
	data, err := body(r)
	if err != nil {
		return answer{}, err
	}
	want, err := translate.Cluster(data)
	if err != nil {
		return answer{}, err
	}
	if boolean(r, "rotateManagerToken") || boolean(r, "rotateManagerUnlockKey") {
		return answer{}, invalid.Errorf("a hub has no managers: there is no manager token and no unlock key")
	}
	current := s.cluster().Spec
	root := want.CAConfig.ForceRotate > current.CAConfig.ForceRotate
	want.CAConfig.ForceRotate = current.CAConfig.ForceRotate
	if changed := differ(current, want); changed != "" {
		return answer{}, invalid.Errorf("%s: the options of a hub are flags of longshore-hub serve", changed)
	}
	if root {
		err = s.Trust.RotateRoot(r.Context())
	}
	if err == nil && boolean(r, "rotateWorkerToken") {
		_, err = s.Trust.RotateToken(r.Context())
	}
	return answer{http.StatusOK, nil}, err
}

// differ names the first of the options that differ; "" when none does.
func differ(a, b swarm.Spec) string {
	limit := func(s swarm.Spec) int64 {
		if s.Orchestration.TaskHistoryRetentionLimit == nil {
			return 0
		}
		return *s.Orchestration.TaskHistoryRetentionLimit
	}
	switch {
	case a.Name != b.Name || len(b.Labels) > 0:
		return "the Swarm's name and labels"
	case limit(a) != limit(b):
		return "Orchestration.TaskHistoryRetentionLimit"
	case a.Dispatcher != b.Dispatcher:
		return "Dispatcher.HeartbeatPeriod (--heartbeat)"
	case a.CAConfig.NodeCertExpiry != b.CAConfig.NodeCertExpiry:
		return "CAConfig.NodeCertExpiry (--certificate-life)"
	case len(b.CAConfig.ExternalCAs) > 0 || b.CAConfig.SigningCACert != "" || b.CAConfig.SigningCAKey != "":
		return "another authority's certificates"
	case b.EncryptionConfig.AutoLockManagers:
		return "EncryptionConfig.AutoLockManagers"
	case b.TaskDefaults.LogDriver != nil:
		return "TaskDefaults.LogDriver"
	case b.Raft.SnapshotInterval != 0 || b.Raft.KeepOldSnapshots != nil || b.Raft.LogEntriesForSlowFollowers != 0 || b.Raft.ElectionTick != 0 || b.Raft.HeartbeatTick != 0:
		return "Raft"
	}
	return ""
}

// nodes serves nodes.
func (s Server) nodes(m *routes) {
	m.handle("GET /nodes", func(r *http.Request) (answer, error) {
		f, err := dockerhttp.ParseFilters(r.URL.Query().Get("filters"), "id", "label", "membership", "name", "node.label", "role")
		if err != nil {
			return answer{}, err
		}
		list := []swarm.Node{}
		for _, n := range s.everyNode() {
			v := n.v
			membership := "accepted"
			if is, _, _ := s.Records.Node(n.id); is != nil {
				membership = strings.ToLower(is.GetSpec().GetMembership().String())
			}
			if f.Prefix("id", v.ID) && f.Prefix("name", v.Description.Hostname) && f.All("label", v.Description.Engine.Labels) && f.All("node.label", v.Spec.Labels) &&
				f.Exact("role", string(v.Spec.Role)) && f.Exact("membership", membership) {
				list = append(list, v)
			}
		}
		return ok(list)
	})
	m.handle("GET /nodes/{id}", func(r *http.Request) (answer, error) {
		n, err := s.node(r.PathValue("id"))
		if err != nil {
			return answer{}, err
		}
		return ok(n.v)
	})
	m.handle("POST /nodes/{id}/update", s.updateNode)
	m.handle("DELETE /nodes/{id}", func(r *http.Request) (answer, error) {
		n, err := s.node(r.PathValue("id"))
		switch {
		case err != nil:
			return answer{}, err
		case n.v.Spec.Role == swarm.NodeRoleManager:
			return answer{}, s.isHub(n)
		case n.v.Status.State == swarm.NodeStateReady && !boolean(r, "force"):
			return answer{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("node %s is not down and can't be removed", n.id))
		}
		return answer{http.StatusOK, nil}, s.Nodes.Remove(r.Context(), n.id)
	})
}

func (s Server) isHub(n named[swarm.Node]) error {
	if n.id == s.Self.Hub {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s is the hub itself, not a node of it", n.id))
	}
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s is a hub, not a node of it", n.id))
}

// hubs returns the hubs in the place of a Swarm's managers, this one first.
func (s Server) hubs() (list []named[swarm.Node]) {
	all := []Hub{{ID: s.Self.Hub, Address: s.Self.Address, Leads: true}}
	if s.Hubs != nil {
		all = s.Hubs()
	}
	cluster := s.cluster()
	platform := swarm.Platform{Architecture: runtime.GOARCH, OS: runtime.GOOS}
	for i, h := range all {
		id, name, version := s.Self.Hub, s.Self.Hostname, "longshore-hub "+s.Self.Version
		if i > 0 {
			id, version = h.ID, "longshore-hub"
			if name = h.Address; strings.Contains(name, ":") {
				name = name[:strings.LastIndexByte(name, ':')]
			}
		}
		status, reach := swarm.NodeStatus{State: swarm.NodeStateReady, Message: "it runs no tasks"}, swarm.ReachabilityReachable
		if text := s.notice(); text != "" {
			status.Message, reach = text, swarm.ReachabilityUnreachable
		}
		list = append(list, named[swarm.Node]{id: id, name: name, rev: 1, v: swarm.Node{
			ID: id, Meta: cluster.Meta,
			Spec:        swarm.NodeSpec{Annotations: swarm.Annotations{Labels: map[string]string{}}, Role: swarm.NodeRoleManager, Availability: swarm.NodeAvailabilityDrain},
			Description: swarm.NodeDescription{Hostname: name, Platform: platform, Engine: swarm.EngineDescription{EngineVersion: version}, TLSInfo: cluster.TLSInfo},
			Status:      status, ManagerStatus: &swarm.ManagerStatus{Leader: h.Leads && reach == swarm.ReachabilityReachable, Reachability: reach, Addr: h.Address},
		}})
	}
	return list
}

// everyNode returns the hubs and all nodes.
func (s Server) everyNode() []named[swarm.Node] {
	list := s.hubs()
	for _, n := range s.Records.Nodes() {
		_, rev, _ := s.Records.Node(n.GetId())
		list = append(list, named[swarm.Node]{id: n.GetId(), name: n.GetDescription().GetHostname(), rev: rev, v: view.Node(n, rev)})
	}
	return list
}

// node is one node; "self" is the hub.
func (s Server) node(ref string) (named[swarm.Node], error) {
	all := s.everyNode()
	if ref == "self" {
		return all[0], nil
	}
	hosts := 0
	for _, n := range all {
		if n.name == ref {
			hosts++
		}
	}
	if hosts > 1 && !slices.ContainsFunc(all, func(n named[swarm.Node]) bool { return n.id == ref }) {
		return named[swarm.Node]{}, invalid.Errorf("node %.100s is ambiguous (%d matches found)", ref, hosts)
	}
	return find("node", ref, all)
}

func (s Server) updateNode(r *http.Request) (answer, error) {
	data, err := body(r)
	if err != nil {
		return answer{}, err
	}
	spec, err := translate.Node(data)
	if err != nil {
		return answer{}, err
	}
	rev, err := sequence(r)
	if err != nil {
		return answer{}, err
	}
	n, err := s.node(r.PathValue("id"))
	switch {
	case err != nil:
		return answer{}, err
	case n.v.Spec.Role == swarm.NodeRoleManager:
		return answer{}, s.isHub(n)
	case spec.GetDesiredRole() == swarmv1.NodeRole_MANAGER:
		return answer{}, invalid.Errorf("node %s cannot be a manager: a fleet is managed by hubs, which are not nodes", n.id)
	case spec.GetAnnotations().GetName() != "":
		return answer{}, invalid.Errorf("node %s cannot be renamed: its name is its host's", n.id)
	}
	if err := fleet.CheckLabels(spec.GetAnnotations().GetLabels()); err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, nil}, s.Nodes.Change(r.Context(), n.id, func(m *swarmv1.Node) error {
		if _, now, _ := s.Records.Node(n.id); now != rev {
			return fleet.ErrSequence
		}
		m.Spec.Availability, m.Spec.Annotations.Labels = spec.GetAvailability(), spec.GetAnnotations().GetLabels()
		return nil
	})
}
