CREATE INDEX "apikey_project_created" ON "responses_app_apikey" ("project_id",
  "created_at");
CREATE INDEX "approvalclaim_claimed" ON "responses_app_approvalclaim" ("claimed_at");
CREATE INDEX "auditrow_actor" ON "responses_app_auditrow" ("actor_name",
  "number");
CREATE INDEX "auditrow_created" ON "responses_app_auditrow" ("created_at");
CREATE INDEX "auditrow_project" ON "responses_app_auditrow" ("project",
  "number");
CREATE INDEX "auditrow_subject" ON "responses_app_auditrow" ("subject",
  "number");
CREATE INDEX "batch_created" ON "responses_app_batch" ("created_at");
CREATE INDEX "batch_open" ON "responses_app_batch" ("worker") WHERE "status" IN ('validating',
  'in_progress',
  'finalizing',
  'cancelling');
CREATE INDEX "batch_project" ON "responses_app_batch" ("project",
  "id");
CREATE INDEX "chainpart_parent" ON "responses_app_chainpart" ("parent_id");
CREATE INDEX "chatchoice_first" ON "responses_app_chatchoice" ("first_id");
CREATE INDEX "chatchoice_listed" ON "responses_app_chatchoice" ("project",
  "created_at",
  "first_id") WHERE "place" = 0;
CREATE INDEX "chatlabel_pinned" ON "responses_app_chatlabel" ("project") WHERE "pinned";
CREATE INDEX "chatlabel_project" ON "responses_app_chatlabel" ("project",
  "changed_at");
CREATE INDEX "conversation_project_created" ON "responses_app_conversation" ("project",
  "created_at");
CREATE INDEX "file_expires" ON "responses_app_storedfile" ("expires_at") WHERE "expires_at" IS NOT NULL;
CREATE INDEX "file_project" ON "responses_app_storedfile" ("project",
  "id");
CREATE INDEX "file_unfinished" ON "responses_app_storedfile" ("created_at") WHERE NOT "is_whole";
CREATE INDEX "goneplace_gone" ON "responses_app_goneplace" ("gone_at");
CREATE INDEX "idempotencykey_expires" ON "responses_app_idempotencykey" ("expires_at");
CREATE INDEX "idempotencykey_project" ON "responses_app_idempotencykey" ("project",
  "expires_at",
  "size");
CREATE INDEX "picture_project" ON "responses_app_picture" ("project",
  "id");
CREATE INDEX "pictureuse_created" ON "responses_app_pictureuse" ("created_at");
CREATE INDEX "pictureuse_picture" ON "responses_app_pictureuse" ("picture_id");
CREATE INDEX "response_chat" ON "responses_app_response" ("project",
  "chat_id",
  "created_at",
  "id",
  "key_id");
CREATE INDEX "response_key" ON "responses_app_response" ("key_id") WHERE NOT ("key_id" = '');
CREATE INDEX "response_listed" ON "responses_app_response" ("created_at",
  "status",
  "project",
  "model",
  "background",
  "transport",
  "input_tokens",
  "cached_tokens",
  "output_tokens",
  "first_token_ms",
  "duration_ms");
CREATE INDEX "response_newest" ON "responses_app_response" ("project",
  "created_at",
  "id",
  "key_id",
  "chat_id");
CREATE INDEX "response_no_chat" ON "responses_app_response" ("created_at",
  "id") WHERE "chat_id" = '';
CREATE INDEX "response_page_chat" ON "responses_app_response" ("project",
  "chat_id",
  "created_at",
  "id",
  "key_id") WHERE "playground";
CREATE INDEX "response_page_newest" ON "responses_app_response" ("project",
  "created_at",
  "id",
  "key_id",
  "chat_id") WHERE "playground";
CREATE INDEX "response_project_created" ON "responses_app_response" ("project",
  "created_at",
  "size");
CREATE INDEX "response_running" ON "responses_app_response" ("worker") WHERE "status" IN ('queued',
  'in_progress');
CREATE INDEX "rollout_group" ON "responses_app_rollout" ("project",
  "group",
  "id");
CREATE INDEX "rollout_last" ON "responses_app_rollout" ("last_at");
CREATE INDEX "rollout_project" ON "responses_app_rollout" ("project",
  "id");
CREATE INDEX "rolloutgeneration_of_response" ON "responses_app_rolloutgeneration" ("response_id");
CREATE INDEX "sampleditem_response" ON "responses_app_sampleditem" ("response_id");
CREATE INDEX "skill_project" ON "responses_app_skill" ("project",
  "id");
CREATE INDEX "skillversion_project" ON "responses_app_skillversion" ("project",
  "bytes");
CREATE INDEX "skillversion_unfinished" ON "responses_app_skillversion" ("created_at") WHERE NOT "is_whole";
CREATE INDEX "upload_expires" ON "responses_app_upload" ("expires_at");
CREATE INDEX "upload_open" ON "responses_app_upload" ("project") WHERE "status" = 'pending';
CREATE INDEX "uploadpart_file" ON "responses_app_uploadpart" ("file_id",
  "place") WHERE "place" IS NOT NULL;
CREATE INDEX "uploadpart_left" ON "responses_app_uploadpart" ("upload_id") WHERE "place" IS NULL;
CREATE INDEX "uploadpart_upload" ON "responses_app_uploadpart" ("upload_id");
CREATE INDEX "usage_days" ON "responses_app_usage" ("project",
  "model",
  (("at" - ("at" % 86400))),
  "at",
  "source",
  "batch",
  "requests",
  "input_tokens",
  "cached_tokens",
  "output_tokens");
CREATE INDEX "usage_folding" ON "responses_app_usage" ("seconds",
  "at");
CREATE INDEX "usage_time" ON "responses_app_usage" ("at",
  "project");
CREATE INDEX "vectorstore_expires" ON "responses_app_vectorstore" ("last_active_at") WHERE "expires_days" IS NOT NULL;
CREATE INDEX "vectorstore_project" ON "responses_app_vectorstore" ("project",
  "id");
CREATE INDEX "vectorstore_removed" ON "responses_app_vectorstore" ("id") WHERE "removed";
CREATE INDEX "vectorstorebatch_store" ON "responses_app_vectorstorebatch" ("store_id");
CREATE INDEX "vectorstorechunk_store" ON "responses_app_vectorstorechunk" ("store_id");
CREATE INDEX "vectorstorecodes_store" ON "responses_app_vectorstorecodes" ("store_id");
CREATE INDEX "vectorstorefile_batch" ON "responses_app_vectorstorefile" ("batch_id") WHERE NOT ("batch_id" = '');
CREATE INDEX "vectorstorefile_embedded" ON "responses_app_vectorstorefile" ("embedded_by",
  "id") WHERE "status" = 'completed';
CREATE INDEX "vectorstorefile_file" ON "responses_app_vectorstorefile" ("file_id");
CREATE INDEX "vectorstorefile_in_work" ON "responses_app_vectorstorefile" ("status",
  "id") WHERE "status" IN ('in_progress',
  'removed');
CREATE INDEX "vectorstorefile_status" ON "responses_app_vectorstorefile" ("store_id",
  "status");
CREATE INDEX "webhookdelivery_due" ON "responses_app_webhookdelivery" ("endpoint_id",
  "due_at") WHERE "status" = 'waiting';
CREATE INDEX "webhookdelivery_ended" ON "responses_app_webhookdelivery" ("status",
  "changed_at");
CREATE INDEX "webhookdelivery_order" ON "responses_app_webhookdelivery" ("endpoint_id",
  "object_id",
  "id") WHERE "status" = 'waiting';
CREATE INDEX "webhookendpoint_project" ON "responses_app_webhookendpoint" ("project",
  "id");
CREATE TABLE "responses_app_adminkey" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "name" varchar(100) NOT NULL,
  "digest" varchar(64) NOT NULL,
  "prefix" varchar(16) NOT NULL,
  "created_at" datetime NOT NULL,
  "expires_at" datetime NULL,
  "revoked_at" datetime NULL,
  "last_used_at" datetime NULL,
  CONSTRAINT "adminkey_digest" UNIQUE ("digest"));
CREATE TABLE "responses_app_answerpart" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "position" integer unsigned NOT NULL CHECK ("position" >= 0),
  "data" text NOT NULL,
  "key_id" varchar(64) NOT NULL,
  CONSTRAINT "answerpart_position" UNIQUE ("key_id",
  "position"));
CREATE TABLE "responses_app_apikey" ("requests_per_minute" bigint unsigned NULL CHECK ("requests_per_minute" >= 0),
  "input_tokens_per_minute" bigint unsigned NULL CHECK ("input_tokens_per_minute" >= 0),
  "output_tokens_per_minute" bigint unsigned NULL CHECK ("output_tokens_per_minute" >= 0),
  "tokens_per_day" bigint unsigned NULL CHECK ("tokens_per_day" >= 0),
  "concurrent_responses" integer unsigned NULL CHECK ("concurrent_responses" >= 0),
  "websockets" integer unsigned NULL CHECK ("websockets" >= 0),
  "id" varchar(64) NOT NULL PRIMARY KEY,
  "name" varchar(100) NOT NULL,
  "digest" varchar(64) NOT NULL,
  "prefix" varchar(16) NOT NULL,
  "scopes" text NOT NULL,
  "created_at" datetime NOT NULL,
  "expires_at" datetime NULL,
  "revoked_at" datetime NULL,
  "last_used_at" datetime NULL,
  "allowed_models" text NOT NULL,
  "project_id" varchar(64) NOT NULL REFERENCES "responses_app_project" ("name") DEFERRABLE INITIALLY DEFERRED,
  "monthly_spend_cents" bigint unsigned NULL CHECK ("monthly_spend_cents" >= 0),
  CONSTRAINT "apikey_digest" UNIQUE ("digest"));
CREATE TABLE "responses_app_approvalclaim" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "project" varchar(64) NOT NULL,
  "request_id" varchar(64) NOT NULL,
  "response_id" varchar(64) NOT NULL,
  "claimed_at" datetime NOT NULL,
  CONSTRAINT "approvalclaim_request" UNIQUE ("project",
  "request_id"));
CREATE TABLE "responses_app_auditrow" ("number" bigint NOT NULL PRIMARY KEY,
  "created_at" datetime NOT NULL,
  "action" varchar(64) NOT NULL,
  "actor_kind" varchar(16) NOT NULL,
  "actor_id" varchar(64) NOT NULL,
  "actor_name" varchar(200) NOT NULL,
  "project" varchar(64) NOT NULL,
  "subject" varchar(200) NOT NULL,
  "address" varchar(64) NOT NULL,
  "detail" text NOT NULL,
  "hash" varchar(64) NOT NULL);
CREATE TABLE "responses_app_batch" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "key_id" varchar(64) NOT NULL,
  "endpoint" varchar(64) NOT NULL,
  "status" varchar(16) NOT NULL,
  "input_file_id" varchar(64) NOT NULL,
  "output_file_id" varchar(64) NOT NULL,
  "error_file_id" varchar(64) NOT NULL,
  "output_seconds" integer unsigned NULL CHECK ("output_seconds" >= 0),
  "model" varchar(256) NOT NULL,
  "metadata" text NULL,
  "errors" text NOT NULL,
  "times" text NOT NULL,
  "created_at" datetime NOT NULL,
  "expires_at" datetime NOT NULL,
  "worker" varchar(64) NOT NULL,
  "epoch" integer NOT NULL,
  "total" integer unsigned NOT NULL CHECK ("total" >= 0),
  "completed" integer unsigned NOT NULL CHECK ("completed" >= 0),
  "failed" integer unsigned NOT NULL CHECK ("failed" >= 0),
  "cancelled" integer unsigned NOT NULL CHECK ("cancelled" >= 0),
  "expired" integer unsigned NOT NULL CHECK ("expired" >= 0),
  "input_tokens" bigint unsigned NOT NULL CHECK ("input_tokens" >= 0),
  "cached_tokens" bigint unsigned NOT NULL CHECK ("cached_tokens" >= 0),
  "output_tokens" bigint unsigned NOT NULL CHECK ("output_tokens" >= 0),
  "reasoning_tokens" bigint unsigned NOT NULL CHECK ("reasoning_tokens" >= 0));
CREATE TABLE "responses_app_batchline" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "number" integer unsigned NOT NULL CHECK ("number" >= 0),
  "custom_id" text NOT NULL,
  "state" smallint unsigned NOT NULL CHECK ("state" >= 0),
  "outcome" varchar(16) NOT NULL,
  "body_size" integer unsigned NOT NULL CHECK ("body_size" >= 0),
  "body" BLOB NOT NULL,
  "result_size" integer unsigned NOT NULL CHECK ("result_size" >= 0),
  "result" BLOB NOT NULL,
  "batch_id" varchar(64) NOT NULL,
  CONSTRAINT "batchline_number" UNIQUE ("batch_id",
  "number"));
CREATE TABLE "responses_app_briefresponse" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "ended_at" datetime NULL);
CREATE TABLE "responses_app_chainpart" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "started_on" varchar(10) NOT NULL,
  "calls" text NOT NULL,
  "kinds" text NOT NULL,
  "lengths" BLOB NOT NULL,
  "tokens" BLOB NOT NULL,
  "settles" bool NOT NULL,
  "ends_final" bool NOT NULL,
  "parent_id" varchar(64) NULL);
CREATE TABLE "responses_app_chatchoice" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "first_id" varchar(64) NOT NULL,
  "place" smallint unsigned NOT NULL CHECK ("place" >= 0),
  "choices" smallint unsigned NOT NULL CHECK ("choices" >= 0),
  "created_at" datetime NOT NULL,
  "model" varchar(256) NOT NULL,
  "metadata" text NOT NULL,
  "form" text NOT NULL,
  "messages" text NOT NULL);
CREATE TABLE "responses_app_chatlabel" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "title" text NOT NULL,
  "title_from" varchar(8) NOT NULL,
  "pinned" bool NOT NULL,
  "changed_at" datetime NOT NULL);
CREATE TABLE "responses_app_conversation" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "created_at" datetime NOT NULL,
  "title" text NOT NULL,
  "status" text NOT NULL,
  "metadata" text NOT NULL,
  "head" varchar(64) NOT NULL,
  "head_position" bigint unsigned NOT NULL CHECK ("head_position" >= 0),
  "next_position" bigint unsigned NOT NULL CHECK ("next_position" >= 0),
  "version" bigint unsigned NOT NULL CHECK ("version" >= 0));
CREATE TABLE "responses_app_conversationitem" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "item_id" varchar(64) NOT NULL,
  "position" bigint unsigned NOT NULL CHECK ("position" >= 0),
  "created_at" datetime NOT NULL,
  "item" text NOT NULL,
  "response_id" varchar(64) NOT NULL,
  "conversation_id" varchar(64) NOT NULL,
  CONSTRAINT "conversationitem_id" UNIQUE ("item_id",
  "conversation_id"),
  CONSTRAINT "conversationitem_position" UNIQUE ("conversation_id",
  "position"));
CREATE TABLE "responses_app_enginedoor" ("model" varchar(255) NOT NULL PRIMARY KEY,
  "number" bigint unsigned NOT NULL CHECK ("number" >= 0),
  "state" text NOT NULL);
CREATE TABLE "responses_app_enginereport" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "model" varchar(255) NOT NULL,
  "worker" varchar(64) NOT NULL,
  "number" bigint unsigned NOT NULL CHECK ("number" >= 0),
  "report" text NOT NULL,
  CONSTRAINT "enginereport_worker" UNIQUE ("model",
  "worker"));
CREATE TABLE "responses_app_filepart" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "position" integer unsigned NOT NULL CHECK ("position" >= 0),
  "data" BLOB NOT NULL,
  "file_id" varchar(64) NOT NULL,
  CONSTRAINT "filepart_position" UNIQUE ("file_id",
  "position"));
CREATE TABLE "responses_app_goneplace" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "project" varchar(64) NOT NULL,
  "list_id" varchar(64) NOT NULL,
  "item_id" varchar(64) NOT NULL,
  "place" varchar(64) NOT NULL,
  "gone_at" datetime NOT NULL,
  CONSTRAINT "goneplace_item" UNIQUE ("project",
  "list_id",
  "item_id"));
CREATE TABLE "responses_app_idempotencykey" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "fingerprint" varchar(64) NOT NULL,
  "state" varchar(16) NOT NULL,
  "object_id" varchar(64) NOT NULL,
  "epoch" integer unsigned NOT NULL CHECK ("epoch" >= 0),
  "token" varchar(64) NOT NULL,
  "worker" varchar(64) NOT NULL,
  "head" text NULL,
  "size" bigint unsigned NOT NULL CHECK ("size" >= 0),
  "created_at" datetime NOT NULL,
  "expires_at" datetime NOT NULL);
CREATE TABLE "responses_app_logpart" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "position" integer unsigned NOT NULL CHECK ("position" >= 0),
  "data" BLOB NOT NULL,
  "response_id" varchar(64) NOT NULL,
  CONSTRAINT "logpart_position" UNIQUE ("response_id",
  "position"));
CREATE TABLE "responses_app_namedsetup" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "name" text NOT NULL,
  "setup" text NOT NULL,
  "created_at" datetime NOT NULL,
  "updated_at" datetime NOT NULL,
  CONSTRAINT "namedsetup_name" UNIQUE ("project",
  "name"));
CREATE TABLE "responses_app_organization" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "monthly_spend_cents" bigint unsigned NULL CHECK ("monthly_spend_cents" >= 0));
CREATE TABLE "responses_app_picture" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "digest" varchar(64) NOT NULL,
  "media_type" varchar(32) NOT NULL,
  "width" integer unsigned NOT NULL CHECK ("width" >= 0),
  "height" integer unsigned NOT NULL CHECK ("height" >= 0),
  "data" BLOB NOT NULL,
  "created_at" datetime NOT NULL,
  "used_at" datetime NOT NULL);
CREATE TABLE "responses_app_pictureuse" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "owner" varchar(64) NOT NULL,
  "created_at" datetime NOT NULL,
  "picture_id" varchar(64) NOT NULL,
  CONSTRAINT "pictureuse_owner" UNIQUE ("owner",
  "picture_id"));
CREATE TABLE "responses_app_project" ("requests_per_minute" bigint unsigned NULL CHECK ("requests_per_minute" >= 0),
  "input_tokens_per_minute" bigint unsigned NULL CHECK ("input_tokens_per_minute" >= 0),
  "output_tokens_per_minute" bigint unsigned NULL CHECK ("output_tokens_per_minute" >= 0),
  "tokens_per_day" bigint unsigned NULL CHECK ("tokens_per_day" >= 0),
  "concurrent_responses" integer unsigned NULL CHECK ("concurrent_responses" >= 0),
  "websockets" integer unsigned NULL CHECK ("websockets" >= 0),
  "name" varchar(64) NOT NULL PRIMARY KEY,
  "created_at" datetime NOT NULL,
  "archived_at" datetime NULL,
  "title" varchar(256) DEFAULT '' NOT NULL,
  "retention_hours" integer NULL,
  "monthly_spend_cents" bigint unsigned NULL CHECK ("monthly_spend_cents" >= 0));
CREATE TABLE "responses_app_publicname" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "name" varchar(64) NOT NULL,
  "leg" integer unsigned NOT NULL CHECK ("leg" >= 0),
  CONSTRAINT "publicname_leg" UNIQUE ("name",
  "project",
  "leg"));
CREATE TABLE "responses_app_response" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "status" varchar(16) NOT NULL,
  "model" varchar(256) NOT NULL,
  "created_at" datetime NOT NULL,
  "body" text NOT NULL,
  "input_items" text NOT NULL,
  "background" bool NOT NULL,
  "cached_tokens" integer unsigned NOT NULL CHECK ("cached_tokens" >= 0),
  "conversation_id" varchar(64) NOT NULL,
  "duration_ms" integer unsigned NULL CHECK ("duration_ms" >= 0),
  "first_token_ms" integer unsigned NULL CHECK ("first_token_ms" >= 0),
  "input_tokens" integer unsigned NOT NULL CHECK ("input_tokens" >= 0),
  "output_tokens" integer unsigned NOT NULL CHECK ("output_tokens" >= 0),
  "previous_response_id" varchar(64) NOT NULL,
  "request" text NULL,
  "size" bigint unsigned NOT NULL CHECK ("size" >= 0),
  "transport" varchar(16) NOT NULL,
  "worker" varchar(64) NOT NULL,
  "epoch" integer DEFAULT 1 NOT NULL,
  "key_id" varchar(64) DEFAULT '' NOT NULL,
  "chat_id" varchar(64) DEFAULT '' NOT NULL,
  "playground" bool DEFAULT 0 NOT NULL,
  "suspicion" smallint unsigned DEFAULT 0 NOT NULL CHECK ("suspicion" >= 0),
  "request_name" varchar(32) DEFAULT '' NOT NULL);
CREATE TABLE "responses_app_responsewords" ("number" bigint NOT NULL PRIMARY KEY,
  "response_id" varchar(64) NOT NULL,
  "project" varchar(64) NOT NULL,
  "first_words" varchar(120) NOT NULL,
  CONSTRAINT "responsewords_response" UNIQUE ("response_id"));
CREATE TABLE "responses_app_rollout" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "name" varchar(128) NOT NULL,
  "group" varchar(128) NOT NULL,
  "metadata" text NOT NULL,
  "sampling" text NOT NULL,
  "weights_wanted" varchar(256) NOT NULL,
  "max_staleness" integer unsigned NULL CHECK ("max_staleness" >= 0),
  "rewards" text NOT NULL,
  "model" varchar(256) NOT NULL,
  "created_at" datetime NOT NULL,
  "last_at" datetime NOT NULL,
  "ended_at" datetime NULL,
  "generations" integer unsigned NOT NULL CHECK ("generations" >= 0),
  "prompt_tokens" bigint unsigned NOT NULL CHECK ("prompt_tokens" >= 0),
  "sampled_tokens" bigint unsigned NOT NULL CHECK ("sampled_tokens" >= 0),
  "bytes" bigint unsigned NOT NULL CHECK ("bytes" >= 0),
  "versions" text NULL,
  CONSTRAINT "rollout_name" UNIQUE ("project",
  "name"));
CREATE TABLE "responses_app_rolloutgeneration" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "number" integer unsigned NOT NULL CHECK ("number" >= 0),
  "response_id" varchar(64) NOT NULL,
  "parent" integer unsigned NULL CHECK ("parent" >= 0),
  "shared" integer unsigned NOT NULL CHECK ("shared" >= 0),
  "near" integer unsigned NULL CHECK ("near" >= 0),
  "cut" varchar(24) NOT NULL,
  "tail" BLOB NOT NULL,
  "sampled" BLOB NOT NULL,
  "logprobs" BLOB NOT NULL,
  "detail" BLOB NOT NULL,
  "rollout_id" varchar(64) NOT NULL,
  CONSTRAINT "rolloutgeneration_number" UNIQUE ("rollout_id",
  "number"));
CREATE TABLE "responses_app_sampleditem" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "fingerprint" varchar(32) NOT NULL,
  "kind" varchar(1) NOT NULL,
  "tokens" BLOB NOT NULL,
  "response_id" varchar(64) NOT NULL);
CREATE TABLE "responses_app_signonaccount" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "issuer" varchar(255) NOT NULL,
  "subject" varchar(255) NOT NULL,
  "created_at" datetime NOT NULL,
  "user_id" integer NOT NULL UNIQUE,
  CONSTRAINT "signonaccount_subject" UNIQUE ("issuer",
  "subject"));
CREATE TABLE "responses_app_skill" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "created_at" datetime NOT NULL,
  "default_version" integer unsigned NOT NULL CHECK ("default_version" >= 0),
  "next_version" integer unsigned NOT NULL CHECK ("next_version" >= 0),
  "is_whole" bool NOT NULL);
CREATE TABLE "responses_app_skillversion" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "version" integer unsigned NOT NULL CHECK ("version" >= 0),
  "name" varchar(64) NOT NULL,
  "description" text NOT NULL,
  "digest" varchar(64) NOT NULL,
  "bytes" bigint unsigned NOT NULL CHECK ("bytes" >= 0),
  "unpacked" bigint unsigned NOT NULL CHECK ("unpacked" >= 0),
  "created_at" datetime NOT NULL,
  "is_whole" bool NOT NULL,
  "skill_id" varchar(64) NOT NULL,
  CONSTRAINT "skillversion_number" UNIQUE ("skill_id",
  "version"));
CREATE TABLE "responses_app_storedfile" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "purpose" varchar(32) NOT NULL,
  "filename" text NOT NULL,
  "bytes" bigint unsigned NOT NULL CHECK ("bytes" >= 0),
  "created_at" datetime NOT NULL,
  "expires_at" datetime NULL,
  "is_whole" bool NOT NULL);
CREATE TABLE "responses_app_upload" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "status" varchar(16) NOT NULL,
  "purpose" varchar(32) NOT NULL,
  "filename" text NOT NULL,
  "bytes" bigint unsigned NOT NULL CHECK ("bytes" >= 0),
  "created_at" datetime NOT NULL,
  "expires_at" datetime NOT NULL,
  "file_seconds" integer unsigned NULL CHECK ("file_seconds" >= 0),
  "file_id" varchar(64) NOT NULL);
CREATE TABLE "responses_app_uploadpart" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "bytes" integer unsigned NOT NULL CHECK ("bytes" >= 0),
  "created_at" datetime NOT NULL,
  "is_whole" bool NOT NULL,
  "file_id" varchar(64) NOT NULL,
  "place" integer unsigned NULL CHECK ("place" >= 0),
  "upload_id" varchar(64) NOT NULL);
CREATE TABLE "responses_app_usage" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "at" bigint NOT NULL,
  "seconds" integer unsigned NOT NULL CHECK ("seconds" >= 0),
  "project" varchar(64) NOT NULL,
  "key_id" varchar(64) NOT NULL,
  "model" varchar(256) NOT NULL,
  "source" varchar(16) NOT NULL,
  "batch" bool NOT NULL,
  "requests" bigint unsigned NOT NULL CHECK ("requests" >= 0),
  "input_tokens" bigint unsigned NOT NULL CHECK ("input_tokens" >= 0),
  "cached_tokens" bigint unsigned NOT NULL CHECK ("cached_tokens" >= 0),
  "output_tokens" bigint unsigned NOT NULL CHECK ("output_tokens" >= 0));
CREATE TABLE "responses_app_vectorstore" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "name" text NOT NULL,
  "description" text NOT NULL,
  "metadata" text NOT NULL,
  "created_at" datetime NOT NULL,
  "last_active_at" datetime NOT NULL,
  "expires_days" integer unsigned NULL CHECK ("expires_days" >= 0),
  "removed" bool NOT NULL);
CREATE TABLE "responses_app_vectorstorebatch" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "created_at" datetime NOT NULL,
  "cancelled" bool NOT NULL,
  "store_id" varchar(64) NOT NULL);
CREATE TABLE "responses_app_vectorstorechunk" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "position" integer unsigned NOT NULL CHECK ("position" >= 0),
  "text" text NOT NULL,
  "store_id" varchar(64) NOT NULL,
  "file_id" bigint NOT NULL,
  CONSTRAINT "vectorstorechunk_position" UNIQUE ("file_id",
  "position"));
CREATE TABLE "responses_app_vectorstorecodes" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "model" varchar(255) NOT NULL,
  "start" integer unsigned NOT NULL CHECK ("start" >= 0),
  "count" integer unsigned NOT NULL CHECK ("count" >= 0),
  "keys" BLOB NOT NULL,
  "codes" BLOB NOT NULL,
  "file_id" bigint NOT NULL,
  "store_id" varchar(64) NOT NULL,
  CONSTRAINT "vectorstorecodes_start" UNIQUE ("file_id",
  "start"));
CREATE TABLE "responses_app_vectorstorefile" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "file_id" varchar(64) NOT NULL,
  "batch_id" varchar(64) NOT NULL,
  "filename" text NOT NULL,
  "created_at" datetime NOT NULL,
  "status" varchar(16) NOT NULL,
  "error_code" varchar(32) NOT NULL,
  "error_message" text NOT NULL,
  "attributes" text NOT NULL,
  "chunk_size" integer unsigned NOT NULL CHECK ("chunk_size" >= 0),
  "chunk_overlap" integer unsigned NOT NULL CHECK ("chunk_overlap" >= 0),
  "usage_bytes" bigint unsigned NOT NULL CHECK ("usage_bytes" >= 0),
  "worker" varchar(64) NOT NULL,
  "leased_until" datetime NULL,
  "attempts" integer unsigned NOT NULL CHECK ("attempts" >= 0),
  "store_id" varchar(64) NOT NULL,
  "embedded_by" varchar(255) DEFAULT '' NOT NULL,
  "embedding_until" datetime NULL,
  "embedding_worker" varchar(64) DEFAULT '' NOT NULL);
CREATE TABLE "responses_app_vectorstorevector" ("chunk_id" bigint NOT NULL PRIMARY KEY,
  "vector" BLOB NOT NULL);
CREATE TABLE "responses_app_webhookdelivery" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "project" varchar(64) NOT NULL,
  "event_id" varchar(64) NOT NULL,
  "type" varchar(64) NOT NULL,
  "object_id" varchar(64) NOT NULL,
  "body" text NOT NULL,
  "created_at" datetime NOT NULL,
  "status" varchar(16) NOT NULL,
  "changed_at" datetime NOT NULL,
  "attempts" integer unsigned NOT NULL CHECK ("attempts" >= 0),
  "due_at" datetime NOT NULL,
  "give_up_at" datetime NOT NULL,
  "status_code" smallint unsigned NULL CHECK ("status_code" >= 0),
  "problem" text NOT NULL,
  "endpoint_id" varchar(64) NOT NULL,
  CONSTRAINT "webhookdelivery_once" UNIQUE ("endpoint_id",
  "event_id"));
CREATE TABLE "responses_app_webhookendpoint" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "project" varchar(64) NOT NULL,
  "name" text NOT NULL,
  "url" text NOT NULL,
  "event_types" text NOT NULL,
  "created_at" datetime NOT NULL,
  "updated_at" datetime NOT NULL,
  "enabled" bool NOT NULL,
  "secret" text NOT NULL,
  "secret_hint" varchar(32) NOT NULL,
  "old_secret" text NOT NULL,
  "old_secret_until" datetime NULL,
  "worker" varchar(64) NOT NULL,
  "leased_until" datetime NULL,
  "served_at" datetime NULL,
  "paused_until" datetime NULL,
  "failures" integer unsigned NOT NULL CHECK ("failures" >= 0),
  "dropped" integer unsigned NOT NULL CHECK ("dropped" >= 0));
CREATE TABLE "responses_app_webhookevent" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT,
  "event_id" varchar(64) NOT NULL,
  "project" varchar(64) NOT NULL,
  "object_id" varchar(64) NOT NULL,
  "messages" text NOT NULL,
  "created_at" datetime NOT NULL,
  CONSTRAINT "webhookevent_once" UNIQUE ("event_id"));
CREATE TABLE "responses_app_wordstoread" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "below" varchar(64) NOT NULL);
CREATE TABLE "responses_app_worker" ("id" varchar(64) NOT NULL PRIMARY KEY,
  "started_at" datetime NOT NULL,
  "seen_at" datetime NOT NULL,
  "connections" integer unsigned NOT NULL CHECK ("connections" >= 0),
  "in_flight" integer unsigned NOT NULL CHECK ("in_flight" >= 0));
CREATE TABLE 'responses_app_chunkwords_config'(k PRIMARY KEY,
  v) WITHOUT ROWID;
CREATE TABLE 'responses_app_chunkwords_content'(id INTEGER PRIMARY KEY,
  c0,
  c1);
CREATE TABLE 'responses_app_chunkwords_data'(id INTEGER PRIMARY KEY,
  block BLOB);
CREATE TABLE 'responses_app_chunkwords_docsize'(id INTEGER PRIMARY KEY,
  sz BLOB);
CREATE TABLE 'responses_app_chunkwords_idx'(segid,
  term,
  pgno,
  PRIMARY KEY(segid,
  term)) WITHOUT ROWID;
CREATE TABLE 'responses_app_saidwords_config'(k PRIMARY KEY,
  v) WITHOUT ROWID;
CREATE TABLE 'responses_app_saidwords_content'(id INTEGER PRIMARY KEY,
  c0);
CREATE TABLE 'responses_app_saidwords_data'(id INTEGER PRIMARY KEY,
  block BLOB);
CREATE TABLE 'responses_app_saidwords_docsize'(id INTEGER PRIMARY KEY,
  sz BLOB);
CREATE TABLE 'responses_app_saidwords_idx'(segid,
  term,
  pgno,
  PRIMARY KEY(segid,
  term)) WITHOUT ROWID;
CREATE TRIGGER responses_app_chunkwords_delete AFTER DELETE ON responses_app_vectorstorechunk
BEGIN DELETE FROM responses_app_chunkwords WHERE rowid = old.id; END;
CREATE TRIGGER responses_app_codes_delete AFTER DELETE ON responses_app_vectorstorefile
    BEGIN DELETE FROM responses_app_vectorstorecodes WHERE file_id = old.id; END;
CREATE TRIGGER responses_app_saidwords_delete AFTER DELETE ON responses_app_responsewords
    BEGIN DELETE FROM responses_app_saidwords WHERE rowid = old.number; END;
CREATE TRIGGER responses_app_vector_delete AFTER DELETE ON responses_app_vectorstorechunk
    BEGIN DELETE FROM responses_app_vectorstorevector WHERE chunk_id = old.id; END;
CREATE TRIGGER responses_app_words_delete AFTER DELETE ON responses_app_response
    BEGIN DELETE FROM responses_app_responsewords WHERE response_id = old.id; END;
CREATE TRIGGER responses_app_words_insert AFTER INSERT ON responses_app_response
    WHEN new.status NOT IN ('queued',
  'in_progress')
    BEGIN INSERT OR IGNORE INTO responses_app_wordstoread (id,
  below) VALUES (new.id,
  ''); END;
CREATE TRIGGER responses_app_words_update AFTER UPDATE OF status ON responses_app_response
    WHEN old.status IN ('queued',
  'in_progress') AND new.status NOT IN ('queued',
  'in_progress')
    BEGIN INSERT OR IGNORE INTO responses_app_wordstoread (id,
  below) VALUES (new.id,
  ''); END;
CREATE UNIQUE INDEX "vectorstorefile_once" ON "responses_app_vectorstorefile" ("store_id",
  "file_id") WHERE NOT ("status" = 'removed');
CREATE VIRTUAL TABLE responses_app_chunkwords
USING fts5(store,
  words,
  tokenize = 'porter unicode61 remove_diacritics 2');
CREATE VIRTUAL TABLE responses_app_saidwords
    USING fts5(words,
  tokenize = 'unicode61 remove_diacritics 2');
