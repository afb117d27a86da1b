// Package listing has the data that lists of objects give to templates: the columns of docker's lists, and our own. A column
// that we do not have is as docker shows it when it is not known.
package listing

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

// The headers of docker's tables that differ from list to list.
var (
	ContainerHeaders = present.Headers{"ID": "CONTAINER ID"}
	ImageHeaders     = present.Headers{"ID": "IMAGE ID"}
	VolumeHeaders    = present.Headers{"Name": "VOLUME NAME"}
	NetworkHeaders   = present.Headers{"ID": "NETWORK ID"}
)

// Container returns the data of a container for templates.
func Container(c *longshorev1.Container, full bool) present.Row {
	id, command := c.GetId(), strings.Join(c.GetCommand(), " ")
	if !full {
		id, command = base.Short(id), base.Cut(command, 20)
	}
	exit := ""
	if c.GetAutopsy() != nil {
		exit = strconv.Itoa(int(c.GetAutopsy().GetStatus()))
	}
	volumes := strings.Join(c.GetVolumes(), ",")
	return present.Row{
		"ID": id, "Names": c.GetName(), "Name": c.GetName(), "Image": c.GetImage(), "ImageID": c.GetImageId(), "Command": strconv.Quote(command),
		"CreatedAt": c.GetCreated().AsTime().Local().Format(rowTime), "RunningFor": base.Ago(c.GetCreated()), "Ports": base.PortText(c.GetPorts()),
		"State": c.GetState(), "Status": statusText(c), "Size": SizeText(c), "Mounts": volumes, "LocalVolumes": strconv.Itoa(len(c.GetVolumes())),
		"Networks": strings.Join(c.GetNetworks(), ","), "Owner": c.GetOwner(), "Pid": int(c.GetPid()), "ExitCode": exit, "Platform": (*string)(nil),
	}.WithLabels(c.GetLabels())
}

// statusText returns the text of docker's column STATUS.
func statusText(c *longshorev1.Container) string {
	switch c.GetState() {
	case "running":
		up := "Up " + base.Span(time.Since(c.GetStarted().AsTime()))
		switch c.GetHealth() {
		case "":
			return up
		case "starting":
			return up + " (health: starting)"
		}
		return up + " (" + c.GetHealth() + ")"
	case "paused":
		return "Up " + base.Span(time.Since(c.GetStarted().AsTime())) + " (Paused)"
	case "asleep":
		return "Asleep " + base.Span(time.Since(c.GetRest().GetSince().AsTime())) + ", " + base.Size(c.GetRest().GetGivenBytes()) + " given back"
	case "restarting":
		return fmt.Sprintf("Restarting (%d) %s", c.GetAutopsy().GetStatus(), base.Ago(c.GetFinished()))
	case "exited":
		return fmt.Sprintf("Exited (%d) %s", c.GetAutopsy().GetStatus(), base.Ago(c.GetFinished()))
	}
	return strings.ToUpper(c.GetState()[:1]) + c.GetState()[1:]
}

// SizeText returns the size of a container's changes, followed by the size of image and changes together.
func SizeText(c *longshorev1.Container) string {
	if c.SizeRw == nil {
		return ""
	}
	text := base.Size(c.GetSizeRw())
	if c.SizeImage != nil {
		text += " (virtual " + base.Size(c.GetSizeRw()+c.GetSizeImage()) + ")"
	}
	return text
}

// Images returns the data of an image for templates: a row for each name.
func Images(img *longshorev1.Image, full bool) []present.Row {
	names := img.GetNames()
	if len(names) == 0 {
		names = []string{""}
	}
	id := img.GetId()
	if !full {
		id = base.Short(id)
	}
	var rows []present.Row
	for _, n := range names {
		repository, tag := present.Repository(n)
		if n == "" {
			repository, tag = "<none>", "<none>"
		}
		size := base.Size(uint64(max(img.GetSizeBytes(), 0)))
		rows = append(rows, present.Row{
			"Containers": notKnown, "SharedSize": notKnown, "UniqueSize": notKnown, "VirtualSize": size,
			"ID": id, "Repository": repository, "Tag": tag, "Digest": img.GetDigest(), "Size": size, "Name": n, "Owner": img.GetOwner(),
			"CreatedSince": base.Ago(img.GetCreated()), "CreatedAt": img.GetCreated().AsTime().Local().Format(rowTime), "Platform": img.GetPlatform(), "Artifact": img.GetArtifact(),
		})
	}
	return rows
}

// Volume returns the data of a volume for templates.
func Volume(v *longshorev1.Volume) present.Row {
	return present.Row{
		"Name": v.GetName(), "Driver": "local", "Scope": "local", "Mountpoint": v.GetPath(), "Owner": v.GetOwner(),
		"CreatedAt": v.GetCreated().AsTime().Local().Format(rowTime), "Links": notKnown, "Size": notKnown, "Status": notKnown, "Availability": notKnown, "Group": notKnown,
	}.WithLabels(v.GetLabels())
}

// Network returns the data of a network for templates.
func Network(n *longshorev1.Network) present.Row {
	ipv4, ipv6 := "false", "false"
	for _, s := range n.GetSubnets() {
		if strings.Contains(s.GetRange(), ":") {
			ipv6 = "true"
		} else {
			ipv4 = "true"
		}
	}
	internal := "false"
	if n.GetInternal() {
		internal = "true"
	}
	return present.Row{
		"ID": n.GetName(), "Name": n.GetName(), "Driver": "bridge", "Scope": "local", "Internal": internal, "IPv4": ipv4, "IPv6": ipv6,
		"CreatedAt": n.GetCreated().AsTime().Local().Format(rowTime),
	}.WithLabels(n.GetLabels())
}

// notKnown is docker's text for a column that a list does not have.
const notKnown = "N/A"

// rowTime is the form of a time in a row.
const rowTime = "2006-01-02 15:04:05 -0700 MST"
