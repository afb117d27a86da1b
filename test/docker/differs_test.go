package docker_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// knownDifference is one line of the guide's table of differences. In request and path, * is any text.
type knownDifference struct{ request, path, reason string }

// The reasons of several differences.
const (
	ownWords    = "The message has the same meaning in the node's words."
	badIs400    = "A value that cannot be read is a client's error, status 400. dockerd answers 500."
	atCreate    = "The node checks the value when the container is created. dockerd accepts it, and the start fails or the value has no effect."
	noBuilder   = "The node has no builder, and answers 501 with the way to get one."
	noPlugins   = "The node has no plugins."
	paths       = "The node does not redirect. A name may begin with an encoded slash."
	allHeaders  = "All answers have these headers. dockerd leaves them out for unknown paths, refused versions, and attach."
	storage     = "The node's layers are not dockerd's directories: GraphDriver.Data has only what the node knows."
	ownInfo     = "The document describes the node: its runtimes, components, log and network drivers."
	noEmptyNull = "An empty list or object in place of null."
	attachJSON  = "Errors of attach are JSON, as all others. dockerd writes them as text with the type of the stream."
	moreStats   = "The node passes on all counters of the kernel."
	bridgeOwn   = "The predefined network bridge is the node's own default network."
	plainHTTP   = "The node does not push by plain HTTP to another machine unless its hosts.toml says so."
	exposes     = "PortBindings expose the port. dockerd 28 ignores those of ports that are not exposed."
	addsLayer   = "A commit makes a layer also if nothing was changed, and its image has no parent."
	layersKnown = "Layers that another image of the node has are not pulled again, nor pushed where the registry has them."
)

// knownDifferences are the differences between dockerd 28 and the node, with their reasons. A line that matches no difference
// fails TestBesideDockerd.
var knownDifferences = []knownDifference{
	{"*/_ping", "header Builder-Version", "1 in place of 2: the node has no builder, and docker before 23 chooses the classic one by it."},
	{"*", "header Api-Version", allHeaders},
	{"*", "header Docker-Experimental", allHeaders},
	{"*", "header Ostype", allHeaders},
	{"*", "header Server", allHeaders},
	{"GET *version", "$.BuildTime", ownInfo},
	{"GET *version", "$.Components", ownInfo},
	{"GET *version", "$.Platform.Name", ownInfo},
	{"GET *info", "$.Containerd", ownInfo},
	{"GET *info", "$.DriverStatus", ownInfo},
	{"GET *info", "$.KernelMemory*", ownInfo},
	{"GET *info", "*$.Plugins.*", ownInfo},
	{"GET *info", "$.RegistryConfig.*", ownInfo},
	{"GET *info", "$.Runtimes.*", ownInfo},
	{"GET /v1/containers/json", "*", "A version without a point is no version: 400 as JSON."},
	{"GET /v1.44.1/version", "status", "A version has two numbers."},
	{"GET *//*", "status", paths},
	{"GET /containers/../version", "status", paths},
	{"GET /containers/%2Fone/json", "status", paths},
	{"GET /version?page=another", "status", "A request of a web page, with an Origin that is not the request's host, is refused."},
	{"POST /v1.24/build/prune", "status", "Older versions than 1.31 do not have the operation."},
	{"GET /volumes/", "$.message", ownWords},
	{"POST /swarm/join {}", "status", "A node joins a Swarm by longshore swarm join."},
	{"POST /plugins/*", "status", noPlugins},
	{"POST /build/cancel*", "header Content-Type", "The answer has no body and no type."},
	{"POST /build", "status", noBuilder},
	{"POST /session", "status", noBuilder},
	{"POST /grpc", "status", noBuilder},
	{"GET /images/search*", "status", "The node searches no registry: 501."},
	{"POST /auth {", "status", badIs400},
	{"GET /distribution/*", "$.Platforms", "The platform of an image without an index is told, too."},
	{"GET /distribution/*none*", "$.message", ownWords},
	{"POST /containers/create []", "$.message", ownWords},
	{`POST /containers/create "x"`, "$.message", ownWords},
	{`POST /containers/create {"Image":5}`, "$.message", ownWords},
	{"GET /containers/json?limit=x", "status", badIs400},
	{`GET /networks?filters={"dangling":["maybe"]}`, "$.message", ownWords},
	{"GET *system/df*", "$.Images[].RepoDigests", noEmptyNull},
	{`GET /images/json?filters={"until":["x"]}`, "status", badIs400},
	{"GET *images/*/json", "$.Metadata.LastTagTime", "An image has the time of its last tag also after it was loaded."},
	{"POST /images/box/tag", "status", "A tag needs a repository. dockerd answers 200 and does nothing."},
	{"POST /images/create?*", "body", layersKnown},
	{"POST /images/create?fromImage=*none*", "$.message", ownWords},
	{"POST /images/create?*platform=nothing*", "$.message", ownWords},
	{"POST /images/create", "status", badIs400},
	{"POST /images/create?*NOTHING", "$.message", ownWords},
	{"GET /images/*/json", "$.DockerVersion", "An image is not marked with the version of the engine."},
	{"GET */json*", "$.GraphDriver.Data.*", storage},
	{"GET /images/kept:1/json", "*$.Parent", addsLayer},
	{"GET /images/kept:1/json", "$.RootFS.Layers", addsLayer},
	{"GET /images/kept:1/history", "$", addsLayer},
	{"DELETE /images/kept:2", "$", addsLayer},
	{"POST /commit*", "$.message", ownWords},
	{"POST /containers/*/unpause", "status", "409 in place of 500."},
	{"GET /containers/json?size=1", "$[].SizeRw", "Directories count, so that a new container has a size above 0, which dockerd leaves out."},
	{"GET *stats*", "$.memory_stats.stats.*", moreStats},
	{"GET *one-shot=1", "$.*", "A single sample has the id and the name of its container."},
	{"POST /containers/one/stop?t=x", "status", badIs400},
	{"GET /containers/*/json", "$.State.FinishedAt", "The end of the last run is shown after it, also of one that failed, and not while the container runs again."},
	{"GET /containers/cli/json", "*$.Config.Volumes", noEmptyNull},
	{"GET /containers/{h}/json", "*$.HostConfig.SecurityOpt", "The node has no SELinux: label=disable is not added."},
	{"GET /containers/{h}/json", "$.NetworkSettings.SandboxKey", "The namespace of the host has no path."},
	{"GET /containers/{j}/json", "$.Config.ExposedPorts", "A container on the network of another one exposes no ports."},
	{"GET /containers/{j}/json", "$.NetworkSettings.*", "The networks of the joined container are shown."},
	{"GET /containers/{j}/json", "value of $.Config.Hostname", "The host name in the joined namespace is shown."},
	{`POST /containers/prune?filters={"until":["x"]}`, "$.message", ownWords},
	{"GET /containers/logs/logs?stdout=1&since=x", "status", badIs400},
	{"GET /events?*=x", "status", badIs400},
	{"GET /containers/logs/logs?stdout=1&since=2020*", "status", "Times in the form of RFC 3339 work, too."},
	{"POST /containers/none/attach*", "body", attachJSON},
	{"POST /containers/none/attach*", "header Content-Type", attachJSON},
	{"POST /containers/none/attach*", "$*", attachJSON},
	{"POST /containers/none/attach*", "documents", attachJSON},
	{"attach *", "transcript", attachJSON},
	{"POST /containers/create?name=x *", "status", "Names may have one character."},
	{"POST *containers/create*", "$.message", ownWords},
	{"POST /containers/create *nonsense*", "status", atCreate},
	{"POST /containers/create *NONSENSE*", "status", atCreate},
	{`POST /containers/create *"x/tcp"*`, "status", atCreate},
	{`POST /containers/create *"x"*`, "status", atCreate},
	{"POST /containers/create *BlkioWeight*", "status", atCreate},
	{"POST /containers/create *Binds*", "status", badIs400},
	{"POST /containers/create?name=no*", "status", atCreate},
	{"POST /containers/no*/start", "status", atCreate},
	{"POST /containers/nonet/start", "$.message", atCreate},
	{"POST /volumes/create*", "$.message", ownWords},
	{"GET /containers/*/json", "$.NetworkSettings.Networks.bridge.NetworkID", "The id of a network stays while a container does not run."},
	{"POST /containers/*/start", "$.message", ownWords},
	{"GET /containers/hidden/json", "*81/tcp", exposes},
	{"GET /containers/second/json", "$.*Path", "Paths are shown after the first start that succeeded."},
	{"GET /containers/second/json", "$.State.Error", "The error of a start that found a port taken is in its answer only."},
	{"POST /exec/{e}/resize?h=1&w=1", "status", "409 at once, where dockerd waits ten seconds for the start and answers 500."},
	{"POST /exec/{g}/start {}", "body", ownWords},
	{"POST /containers/box/exec *", "$.message", ownWords},
	{"POST /containers/box/exec *", "status", badIs400},
	{"exec with input in the same packet as its body", "transcript", "Input that comes with the request reaches the program. dockerd loses it."},
	{"GET *networks*", "value of *com.docker.network.bridge.name", bridgeOwn},
	{`GET /networks?filters={"type":["nonsense"]}`, "status", badIs400},
	{"GET /networks/six", "value of $.IPAM.Config.1.Subnet", "The node chooses addresses from its own range, and lists those of the request in another order."},
	{`POST /networks/create {"Name":"a b"}`, "status", "Names of networks have letters, digits and _.- only."},
	{"POST /containers/{j}/start", "status", "The process namespace of a container that has the host's cannot be joined."},
	{"POST /containers/create?name=pic *", "$.Warnings", "A mount of an image is no experiment here, and its directory is not shown."},
	{"GET /containers/pic/json", "$.Mounts[].Source", "A mount of an image is no experiment here, and its directory is not shown."},
	{"GET /containers/pic/json", "value of $.Mounts", "A mount of an image is no experiment here, and its directory is not shown."},
	{"POST /containers/linked/start", "status", "409 in place of 500."},
	{"GET /containers/*/changes", "*", "The targets of mounts, which the runtime makes, are no changes."},
	{"GET /containers/files/archive*", "status", badIs400},
	{"PUT /containers/files/archive*", "status", badIs400},
	{"GET /containers/files/archive?path=/srv/owned", "body", "Hard links keep mode and owner of their file, and are sent as files."},
	{"GET /events?*", "body", "Times and attributes of commit and of volume mounts: the node mounts a new volume once, and a commit is told at its end."},
	{"POST /images/{reg}/mine/push*", "body", plainHTTP},
}

// rareDifferences are those that depend on timing. They may be missing.
var rareDifferences = []knownDifference{
	{"DELETE /networks/app", "status", "A network may keep a container for a moment after its stop."},
	{"POST /images/create?*", "body", layersKnown},
}

// known finds differences in the table.
type known struct {
	used  []int
	found int
	rows  []string            // of unknown differences, for the guide
	in    map[string][]string // requests by rows
}

func newKnown(t *testing.T) *known {
	t.Helper()
	return &known{used: make([]int, len(knownDifferences)), in: map[string][]string{}}
}

// glob matches text against pattern. An asterisk matches any text.
func glob(pattern, text string) bool {
	return regexp.MustCompile("^(?s:" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + ")$").MatchString(text)
}

// difference counts a known difference, and reports another one.
func (k *known) difference(t *testing.T, scene, request string, d difference) {
	t.Helper()
	k.found++
	for i, e := range knownDifferences {
		if glob(e.request, request) && glob(e.path, d.path) {
			k.used[i]++
			return
		}
	}
	for _, e := range rareDifferences {
		if glob(e.request, request) && glob(e.path, d.path) {
			return
		}
	}
	row := fmt.Sprintf("| %s | %s | %s |", d.path, cell(d.docker), cell(d.ours))
	if k.in[row] == nil {
		k.rows = append(k.rows, row)
	}
	k.in[row] = append(k.in[row], scene+": "+request)
}

// cell is a text in one line of a table.
func cell(text string) string {
	if text == "" {
		return "absent"
	}
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return strings.NewReplacer("\n", "⏎", "|", `\|`).Replace(text)
}

// check reports unknown differences as rows for the guide, and lines of the table that match no difference.
func (k *known) check(t *testing.T) {
	t.Helper()
	for _, row := range k.rows {
		in := k.in[row]
		more := ""
		if len(in) > 1 {
			more = fmt.Sprintf(" and %d more", len(in)-1)
		}
		t.Errorf("a difference is not in the table of known differences: | `%s`%s %s", in[0], more, row)
	}
	var rows strings.Builder
	for i, n := range k.used {
		e := knownDifferences[i]
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", cell(e.request), cell(e.path), e.reason)
		if n == 0 {
			t.Errorf("no answer differs any more at the known difference %q %q: remove it", e.request, e.path)
		}
	}
	t.Logf("the guide's rows:\n%s", rows.String())
}
