// What the package @shoal/worker is to a page or an app.

export { Device, type Events, type Progress, type Shown } from "./device.ts";
export { type About, type Identity, type Offer, type OwnOffer, RefusedHere } from "./identity.ts";
export { leaving } from "./leaving.ts";
export type { BlobStore, Build, Door, Engine, KeyStore, OwnRows, Parts, RowSource, Socket } from "./parts.ts";
export type { Rows } from "./examples.ts";
export { columnsFromPlain, fitted, type RawColumn, type Values } from "./raw_columns.ts";
export { readTable, rowOf, type RowTable, tableOf } from "./row_tables.ts";
export { type MetricSum } from "./worker_role.ts";
export { type Added, addFiles, addRow, BrowserKeys, BrowserRows, CacheBlobs, ENGINE_VERSION, engineOf, WebDoor, WebEngine, webParts } from "./web/index.ts";
export { type Around, type Allowed, whyRest } from "./rest.ts";
