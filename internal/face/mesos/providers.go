package mesos

import (
	"context"
	"fmt"
	"net/http"

	"github.com/containerd/errdefs"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/providers"
)

// Configurations of resource providers are stored for clients that manage them by this
// API. No provider is launched by them, so none subscribes.

func addProvider(d *providers.Dir) handler {
	return func(_ context.Context, x *api.Exchange) error {
		info := x.Call.GetAddResourceProviderConfig().GetInfo()
		if err := checkProvider(info); err != nil {
			return err
		}
		err := d.Add(info)
		if errdefs.IsAlreadyExists(err) {
			return &api.Error{Code: http.StatusConflict, Text: providerName(info) + " already exists"}
		}
		return err
	}
}

func updateProvider(d *providers.Dir) handler {
	return func(_ context.Context, x *api.Exchange) error {
		info := x.Call.GetUpdateResourceProviderConfig().GetInfo()
		if err := checkProvider(info); err != nil {
			return err
		}
		err := d.Update(info)
		if errdefs.IsNotFound(err) {
			return &api.Error{Code: http.StatusNotFound, Text: providerName(info) + " does not exist"}
		}
		return err
	}
}

func removeProvider(d *providers.Dir) handler {
	return func(_ context.Context, x *api.Exchange) error {
		in := x.Call.GetRemoveResourceProviderConfig()
		return d.Remove(in.GetType(), in.GetName())
	}
}

func checkProvider(info *mesosv1.ResourceProviderInfo) error {
	err := providers.Check(info)
	if err == nil {
		return nil
	}
	return &api.Error{Code: http.StatusBadRequest, Text: fmt.Sprintf("Failed to validate resource provider config with type '%s' and name '%s': %v", info.GetType(), info.GetName(), err)}
}

func providerName(info *mesosv1.ResourceProviderInfo) string {
	return fmt.Sprintf("Resource provider with type '%s' and name '%s'", info.GetType(), info.GetName())
}
