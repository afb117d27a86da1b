package cli

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
)

// TestEachColumnHasAHeader makes a table of each column of each list. docker's headers of some columns differ from list to list.
func TestEachColumnHasAHeader(t *testing.T) {
	for name, list := range map[string]struct {
		headers present.Headers
		row     present.Row
		want    map[string]string
	}{
		"ps": {listing.ContainerHeaders, listing.Container(&longshorev1.Container{State: "created", Created: timestamppb.Now()}, true), map[string]string{
			"ID": "CONTAINER ID", "Names": "NAMES", "RunningFor": "CREATED", "LocalVolumes": "LOCAL VOLUMES", "Platform": "PLATFORM", "CreatedAt": "CREATED AT",
		}},
		"images": {listing.ImageHeaders, listing.Images(&longshorev1.Image{}, true)[0], map[string]string{
			"ID": "IMAGE ID", "SharedSize": "SHARED SIZE", "UniqueSize": "UNIQUE SIZE", "VirtualSize": "SIZE", "Containers": "CONTAINERS",
		}},
		"volume ls":  {listing.VolumeHeaders, listing.Volume(&longshorev1.Volume{}), map[string]string{"Name": "VOLUME NAME", "Links": "LINKS", "Availability": "AVAILABILITY", "Group": "GROUP", "Status": "STATUS"}},
		"network ls": {listing.NetworkHeaders, listing.Network(&longshorev1.Network{}), map[string]string{"ID": "NETWORK ID", "Name": "NAME", "IPv4": "IPV4", "IPv6": "IPV6", "Internal": "INTERNAL"}},
	} {
		for column := range list.row {
			if strings.ContainsRune(column, 0) {
				continue // it is no column
			}
			f, err := present.ParseFormat("table {{." + column + "}}")
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := f.Rows(&out, list.headers, nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if want := list.want[column]; want != "" && strings.TrimSpace(out.String()) != want {
				t.Errorf("%s: %s is above %s, want %s", name, out.String(), column, want)
			}
		}
		for column := range list.want {
			if _, ok := list.row[column]; !ok {
				t.Errorf("%s has no column %s", name, column)
			}
		}
	}
}
