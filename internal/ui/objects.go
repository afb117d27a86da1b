package ui

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// object is a container or a sandbox, as short as a list of a thousand needs it.
type object struct {
	Kind    string   `json:"t"` // c or s
	ID      string   `json:"id"`
	Owner   string   `json:"o"`
	Name    string   `json:"n"`
	Group   string   `json:"g,omitempty"`  // the pod, job, service or project that it belongs to
	Groups  string   `json:"gk,omitempty"` // the kind of Group
	Sandbox string   `json:"sb,omitempty"`
	State   string   `json:"st"`
	Image   string   `json:"im,omitempty"`
	ImageID string   `json:"ii,omitempty"`
	Command []string `json:"cmd,omitempty"`
	Created int64    `json:"cr,omitempty"` // milliseconds
	Started int64    `json:"sa,omitempty"`
	Ended   int64    `json:"en,omitempty"`
	Verdict string   `json:"v,omitempty"`
	Status  *int32   `json:"x,omitempty"` // exit status
	OOM     bool     `json:"oom,omitempty"`
	Health  string   `json:"h,omitempty"`
	Restart uint32   `json:"r,omitempty"`
	Ports   []string `json:"p,omitempty"`
	Address []string `json:"a,omitempty"`
	Network []string `json:"nw,omitempty"`
	Volumes []string `json:"vo,omitempty"`
	Runtime string   `json:"rt,omitempty"`
	Note    string   `json:"no,omitempty"`
}

// millis returns a time in milliseconds since 1970, 0 for none.
func millis(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return t.AsTime().UnixMilli()
}

func portsOf(list []*longshorev1.Port) (out []string) {
	for _, p := range list {
		host := ""
		if p.GetHostIp() != "" {
			host = p.GetHostIp() + ":"
		}
		out = append(out, fmt.Sprintf("%s%d → %d/%s", host, p.GetHost(), p.GetContainer(), p.GetProtocol()))
	}
	return out
}

func sandboxOf(sb *longshorev1.Sandbox) object {
	o := object{
		Kind: "s", ID: sb.GetId(), Owner: sb.GetOwner(), Name: sb.GetKey(), State: sb.GetState(), Created: millis(sb.GetCreated()), Ports: portsOf(sb.GetPorts()),
		Address: sb.GetAddresses(), Network: []string{sb.GetNetwork()}, Runtime: sb.GetRuntime(), Note: sb.GetNote(),
	}
	o.Groups, o.Group = groupOf(sb.GetLabels())
	return o
}

// containerOf converts a container. of are the labels of its sandbox.
func containerOf(c *longshorev1.Container, of map[string]string) object {
	o := object{
		Kind: "c", ID: c.GetId(), Owner: c.GetOwner(), Name: cmp.Or(c.GetLabels()["io.kubernetes.container.name"], c.GetLabels()[nomadLabels+"task_name"], c.GetName(), c.GetKey()),
		Sandbox: c.GetSandbox(), State: c.GetState(), Image: c.GetImage(), ImageID: c.GetImageId(), Command: c.GetCommand(), Created: millis(c.GetCreated()),
		Started: millis(c.GetStarted()), Ended: millis(c.GetFinished()), Health: c.GetHealth(), Restart: c.GetRestarts(), Ports: portsOf(c.GetPorts()),
		Address: c.GetAddresses(), Network: c.GetNetworks(), Volumes: c.GetVolumes(), Runtime: c.GetRuntime(),
	}
	if a := c.GetAutopsy(); a != nil {
		o.Verdict, o.Status, o.OOM = a.GetVerdict(), &a.Status, a.GetOom().GetMain()
	}
	if o.Groups, o.Group = groupOf(of); o.Group == "" {
		o.Groups, o.Group = groupOf(c.GetLabels())
	}
	return o
}

const nomadLabels = "com.hashicorp.nomad."

// groupOf returns the orchestrator's name for a group of containers, and the kind of the group, by the labels that kubelet, Nomad,
// Swarm's managers and Compose give to their objects.
func groupOf(labels map[string]string) (kind, name string) {
	if pod := labels["io.kubernetes.pod.name"]; pod != "" {
		return "pod", labels["io.kubernetes.pod.namespace"] + "/" + pod
	}
	for _, l := range []struct{ kind, label string }{
		{"job", nomadLabels + "job_name"}, {"service", "com.docker.swarm.service.name"}, {"project", "com.docker.compose.project"},
	} {
		if name := labels[l.label]; name != "" {
			return l.kind, name
		}
	}
	return "", ""
}

// event is an entry of the event log.
type event struct {
	Seq       uint64 `json:"seq"`
	At        int64  `json:"at"` // milliseconds
	Kind      string `json:"kind"`
	Owner     string `json:"o,omitempty"`
	Key       string `json:"key,omitempty"`
	Sandbox   string `json:"sb,omitempty"`
	Container string `json:"id,omitempty"`
	Process   string `json:"ps,omitempty"`
	Note      string `json:"no,omitempty"`
}

func eventOf(e *longshorev1.Event) event {
	return event{
		e.GetSeq(), millis(e.GetAt()), e.GetKind(), e.GetOwner(), e.GetKey(), e.GetSandbox(), e.GetContainer(), e.GetProcess(), cmp.Or(e.GetNote(), e.GetAutopsy().GetVerdict()),
	}
}

// row has a container's stats in the order of the page's table, null for a number that the kernel does not report.
func row(c *longshorev1.ContainerStats) []any {
	id := c.GetId()
	return []any{
		id[:min(len(id), 12)], tenth(c.CpuPercent), c.MemoryBytes, c.MemoryLimitBytes, c.Pids, c.PidsLimit, c.GetReadBytes(), c.GetWriteBytes(), c.GetRxBytes(), c.GetTxBytes(), c.RootBytes,
		c.MemoryPeakBytes,
	}
}

// tenth rounds a percentage.
func tenth(p *float64) *float64 {
	if p == nil {
		return nil
	}
	rounded := float64(int64(*p*10+0.5)) / 10
	return &rounded
}
