package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/solo/translate"
)

// Time converts a time. The zero time becomes nil.
func Time(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Autopsy converts the record of a process's end; nil stays nil.
func Autopsy(a *core.Autopsy) *longshorev1.Autopsy {
	if a == nil {
		return nil
	}
	out := &longshorev1.Autopsy{
		Status: int32(a.Exit.Status()), Code: int32(a.Exit.Code), Signal: int32(a.Exit.Signal), Lost: a.Exit.Lost, At: Time(a.Exit.At),
		PeakBytes: a.Peak, LimitBytes: a.Limit, Tail: a.Tail, Start: a.Start, Verdict: a.Verdict,
		Core: a.Exit.Core, Refused: a.Refused, Throttled: a.Throttled, LostOutput: a.LostOutput,
	}
	if a.OOM != nil {
		out.Oom = &longshorev1.Oom{Level: a.OOM.Level, Victim: int32(a.OOM.Victim), Main: a.OOM.Main, Kills: a.OOM.Kills}
	}
	if a.StopRequest != nil {
		out.Asked = &longshorev1.Asked{
			Owner: string(a.StopRequest.Owner), Call: a.StopRequest.Call, User: a.StopRequest.User, Signal: int32(a.StopRequest.Signal), At: Time(a.StopRequest.At),
		}
	}
	return out
}

func toPorts(ports []core.Port) []*longshorev1.Port {
	var out []*longshorev1.Port
	for _, p := range ports {
		q := &longshorev1.Port{Protocol: p.Proto, Host: uint32(p.Host), HostLast: uint32(p.HostLast), Container: uint32(p.Container)}
		if p.HostIP.IsValid() {
			q.HostIp = p.HostIP.String()
		}
		out = append(out, q)
	}
	return out
}

func toAddresses(n core.NetworkStatus) []string {
	var out []string
	for _, a := range n.Addrs {
		out = append(out, a.String())
	}
	return out
}

// Sandbox converts a sandbox with its number of containers.
func Sandbox(sb core.Sandbox, containers int) *longshorev1.Sandbox {
	return &longshorev1.Sandbox{
		Id: string(sb.ID), Owner: string(sb.Owner), Key: string(sb.Key), State: string(sb.State), Created: Time(sb.Created), Labels: sb.Labels,
		Network: sb.Network.Mode, Addresses: toAddresses(sb.Network), Ports: toPorts(sb.Network.Ports), Runtime: sb.Config.Runtime,
		Containers: uint32(containers), Note: sb.Note,
	}
}

// networkNames returns the names of the networks that a sandbox is on, as other tools write them.
// The first is the one that --network names.
func networkNames(sb core.Sandbox) []string {
	switch plain := sb.Config.Network.Name == "" && len(sb.Config.Network.Attach) == 0; {
	case sb.Network.Mode == "":
		return nil // the sandbox has no network yet, or is not known
	case sb.Config.Namespaces.Net.Mode == core.Host || plain && sb.Network.Mode != "builtin":
		return []string{sb.Network.Mode} // CNI knows its default network's name
	}
	var names []string
	for _, a := range sb.Config.Network.Attached() {
		name := translate.NetworkName(a.Network)
		if name == core.NetworkDefault {
			name = translate.BridgeNetwork
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return []string{cmp.Or(sb.Config.Network.Name, sb.Network.Mode)}
	}
	return names
}

// Restarting is the state of a container that its restart policy will start again.
const Restarting = "restarting"

// NeverRan reports whether a container was only created before a boot of the node, which has ended the
// process that waited for its start. It is shown as created.
func NeverRan(c *core.Container) bool {
	a := c.Main.Autopsy
	return c.Config.Durable && c.State == core.ContainerExited && c.Main.Started.IsZero() && a != nil && a.Exit.Lost
}

// Container converts a container without its health. sb is its sandbox; image is the name of its image, if known.
func Container(c core.Container, sb core.Sandbox, image string) *longshorev1.Container {
	if image == "" {
		image = c.Image.String()
	}
	out := &longshorev1.Container{
		Id: string(c.ID), Owner: string(c.Owner), Key: string(c.Key), Name: c.Name(), Sandbox: string(c.Sandbox), State: string(c.State),
		Image: image, ImageId: c.Image.String(), Command: c.Main.Args, Created: Time(c.Created), Started: Time(c.Main.Started), Finished: Time(c.Main.Finished),
		Pid: int32(c.Main.Pid), Autopsy: Autopsy(c.Main.Autopsy), Labels: c.Labels, Runtime: c.Runtime, Warnings: c.Warnings,
	}
	for _, v := range c.Config.Volumes {
		out.Volumes = append(out.Volumes, v.Name)
	}
	out.Restarts, out.Rest, out.Checkpoint = uint32(c.Restarts.Count), Rest(c.Rest), Checkpoint(c.LastCheckpoint())
	switch {
	case c.Restarting():
		out.State = Restarting
	case NeverRan(&c):
		out.State, out.Autopsy, out.Finished = string(core.ContainerCreated), nil, nil
	}
	out.Network, out.Networks = sb.Network.Mode, networkNames(sb)
	// A stopped sandbox no longer has its addresses and ports.
	if sb.State == core.SandboxReady {
		out.Ports, out.Addresses = toPorts(sb.Network.Ports), toAddresses(sb.Network)
	}
	return out
}

// Checkpoint converts a container's checkpoint. nil if it has none.
func Checkpoint(p *core.Checkpoint) *longshorev1.Checkpoint {
	if p == nil {
		return nil
	}
	return &longshorev1.Checkpoint{
		Phase: string(p.Phase), At: Time(p.At), Bytes: p.Bytes, Frozen: durationpb.New(p.Frozen), Tcp: string(p.TCP), Kept: p.Kept, Ended: p.End, Restored: Time(p.Restored),
	}
}

// Rest converts a container's sleep. nil if it never slept.
func Rest(r *core.Rest) *longshorev1.Rest {
	if r == nil || r.Since.IsZero() {
		return nil
	}
	out := &longshorev1.Rest{
		Phase: string(r.Phase), Since: Time(r.Since), GivenBytes: r.Given, StoredBytes: r.Stored, Processes: uint32(r.Processes),
		Woken: Time(r.Woken), By: r.By, Faults: r.Faults, Pages: r.Pages, Swap: r.Swap,
	}
	if r.Back > 0 {
		out.Back = durationpb.New(r.Back)
	}
	for _, m := range r.Resident {
		out.Resident = append(out.Resident, &longshorev1.Resident{Pid: int32(m.Pid), Why: m.Why, Bytes: m.Bytes})
	}
	return out
}

// Process converts an exec's process.
func Process(p core.Process) *longshorev1.Process {
	return &longshorev1.Process{Id: string(p.ID), Args: p.Args, Started: Time(p.Started), Finished: Time(p.Finished), Autopsy: Autopsy(p.Autopsy)}
}

// Image converts an image of an owner.
func Image(owner core.Owner, img core.Image) *longshorev1.Image {
	out := &longshorev1.Image{
		Id: img.ID.String(), Owner: string(owner), Digest: img.Digest.String(), Names: img.Names, Digests: img.Digests,
		SizeBytes: img.Size, UnpackedBytes: img.Unpacked, Pulled: Time(img.Pulled), Pinned: img.Pinned, Labels: img.Config.Config.Labels,
		Artifact: img.Artifact,
	}
	if img.Config.Created != nil {
		out.Created = Time(*img.Config.Created)
	}
	if p := img.Config.Platform; p.OS != "" {
		out.Platform = p.OS + "/" + p.Architecture
		if p.Variant != "" {
			out.Platform += "/" + p.Variant
		}
	}
	return out
}

// Progress converts the progress of a pull or a push.
func Progress(p core.PullProgress) *longshorev1.PullProgress {
	return &longshorev1.PullProgress{Blob: p.Blob.String(), Status: p.Status, Done: p.Done, Total: p.Total}
}

// Event converts an event.
func Event(e core.Event) *longshorev1.Event {
	return &longshorev1.Event{
		Seq: e.Seq, At: Time(e.At), Kind: string(e.Kind), Owner: string(e.Owner), Key: string(e.Key), Sandbox: string(e.Sandbox),
		Container: string(e.Container), Process: string(e.Process), Autopsy: Autopsy(e.Autopsy), Note: e.Note,
	}
}

// Volume converts a volume.
func Volume(v core.Volume) *longshorev1.Volume {
	return &longshorev1.Volume{Owner: string(v.Owner), Name: v.Name, Path: v.Path, Labels: v.Labels, Created: Time(v.Created), Options: v.Options}
}

// FailedTest returns the result of the last health check of a container's last run if it has failed, otherwise "".
func FailedTest(c core.Container) string {
	h := c.HealthNow()
	if h == nil || len(h.Probes) == 0 || h.Probes[len(h.Probes)-1].Code == 0 {
		return ""
	}
	last := h.Probes[len(h.Probes)-1]
	output, _, _ := strings.Cut(strings.TrimSpace(last.Output), "\n")
	switch {
	case last.Code < 0: // no program has ended: the output is an error text of ours
		return output
	case output == "":
		return fmt.Sprintf("exit code %d", last.Code)
	default:
		return fmt.Sprintf("exit code %d: %s", last.Code, output)
	}
}
